// The lines of a log that look like errors or warnings: tinted, and as marks at the edge of the log.

import { plainStyle, writeAnsi } from "./ansi.js";

const ERROR = /Traceback \(most recent call last\)|Error|Exception|error:|ERROR|CRITICAL|FATAL|out of memory| nan|=nan|Segmentation fault/;
const WARNING = /WARN|Warning|warning:/;
const SEARCHES = { error: { errors: true }, warning: { query: "warn" } };
const MOST_LINES = 10_000;
const NEAR_PX = 5;

export function levelOf(message) {
  return ERROR.test(message) ? "error-line" : WARNING.test(message) ? "warning-line" : "";
}

// Shows a few lines with their colours, as the page of the log does.
export function colourLines(part) {
  for (const shown of part.querySelectorAll("[data-lines]")) {
    if (shown.firstElementChild) continue;
    const style = plainStyle();
    shown.replaceChildren(...JSON.parse(shown.dataset.lines).map((line) => {
      const row = Object.assign(document.createElement("div"), { className: levelOf(line) });
      writeAnsi(row, line, style);
      return row;
    }));
  }
}

export class LogMap {
  #marks = { warning: new Set(), error: new Set() };
  #searchedTo = { warning: 0, error: 0 };
  #reading = false;
  #drawn = "";
  #canvas = document.querySelector(".log-map canvas");

  constructor(log) {
    this.log = log;
    new ResizeObserver(() => this.draw()).observe(this.#canvas.parentElement);
  }

  // Marks the lines that the server finds, after those that were searched.
  async read() {
    if (document.hidden) return void document.addEventListener("visibilitychange", () => this.read(), { once: true });
    if (this.#reading) return;
    this.#reading = true;
    for (const [level, query] of Object.entries(SEARCHES)) {
      for (let complete = false; !complete && this.#marks[level].size < MOST_LINES;) {
        const answer = await fetch(this.log.url("/search", { ...query, line: this.#searchedTo[level], limit: MOST_LINES })).catch(() => null);
        if (!answer?.ok) break; // the marks are fewer, and each line still has its tint
        const page = await answer.json();
        for (const line of page.lines) this.#marks[level].add(line);
        [this.#searchedTo[level], complete] = [page.searchedTo, page.complete];
      }
    }
    this.#reading = false;
    this.draw();
  }

  add({ line, message }) {
    const level = levelOf(message).replace("-line", "");
    if (level) this.#marks[level].add(line);
  }

  // The marked line at a place of the edge, or the line that is there.
  nearest(line) {
    const reach = (NEAR_PX / Math.max(1, this.#canvas.clientHeight)) * this.log.last;
    const marked = [...this.#marks.error, ...this.#marks.warning].filter((other) => Math.abs(other - line) <= reach);
    return marked.reduce((best, other) => (Math.abs(other - line) < Math.abs(best - line) ? other : best), marked[0] ?? line);
  }

  draw() {
    const { clientHeight: height } = this.#canvas;
    const { error, warning } = this.#marks;
    const state = [height, this.log.last, error.size, warning.size].join();
    if (state === this.#drawn || !height) return;
    this.#drawn = state;
    this.#canvas.parentElement.title = `Lines that look like errors: ${error.size}, like warnings: ${warning.size}`;
    this.#canvas.height = height;
    const context = this.#canvas.getContext("2d");
    const style = getComputedStyle(this.#canvas);
    for (const [lines, colour] of [[warning, "--fg3"], [error, "--fg1"]]) {
      context.fillStyle = style.getPropertyValue(colour);
      for (const line of lines) context.fillRect(0, Math.round(((line - 1) / Math.max(1, this.log.last)) * (height - 2)), 10, 2);
    }
  }
}
