// A job's log: its last lines, then every further one as it is printed.

import { plainStyle, writeAnsi } from "./ansi.js";
import { isLive, refresh } from "./live.js";

const MOST_LINES = 5000;
const DRAW_MS = 80;
const RETRY_MS = 3000;
const NEAR_END_PX = 24;

export async function followLog(box) {
  const log = new Log(box);
  for (;;) {
    try {
      if (await log.start()) return;
      break;
    } catch {
      log.note("The log cannot be read at this moment; trying again.");
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
  log.follow();
}

class Log {
  #box;
  #address;
  #last = 0;
  #waiting = [];
  #partial = "";
  #partialRow = null;
  #drawing = 0;
  #style = plainStyle();
  #leftOut = false;
  #follow = document.getElementById("follow");

  constructor(box) {
    this.#box = box;
    this.#address = `/jobs/${encodeURIComponent(box.dataset.log)}/logs`;
    box.addEventListener("scroll", () => { this.#follow.checked = this.#atEnd(); }, { passive: true });
    this.#follow.addEventListener("change", () => this.#keepAtEnd());
  }

  // Reads the end of the log; true if nothing will follow.
  async start() {
    const answer = await fetch(`${this.#address}?tail=${MOST_LINES}&limit=${MOST_LINES}`);
    if (!answer.ok) throw new Error(answer.statusText);
    const page = await answer.json();
    this.#leftOut = page.lines.length > 0 && page.lines[0].line > 1;
    page.lines.forEach((row) => this.#take(row));
    this.#draw();
    if (page.complete && !page.lines.length) this.note("Nothing was printed.");
    return page.complete;
  }

  follow() {
    if (!this.#last) this.note("Waiting for output…");
    const source = new EventSource(`${this.#address}?line=${this.#last}`);
    source.addEventListener("line", (event) => {
      this.#partial = "";
      this.#take(JSON.parse(event.data));
      this.#soon();
    });
    source.addEventListener("partial", (event) => {
      this.#partial = JSON.parse(event.data).message;
      this.#soon();
    });
    source.addEventListener("phase", () => refresh());
    source.addEventListener("end", () => {
      source.close();
      this.#partial = "";
      this.#draw();
      if (!this.#last) this.note("Nothing was printed.");
      refresh();
    });
    source.addEventListener("open", () => this.#note());
    source.addEventListener("error", () => {
      if (source.readyState !== EventSource.CLOSED) {
        this.note("Connection lost; coming back…");
        return;
      }
      source.close();
      this.note("Connection lost; coming back…");
      // Refreshes the page first: its response shows whether the job and the session still exist.
      setTimeout(() => refresh().then(() => this.follow()), isLive() ? RETRY_MS : 4 * RETRY_MS);
    });
  }

  note(text) {
    document.querySelector("[data-log-note]").textContent = text;
  }

  #note() {
    if (!this.#last) this.note("Waiting for output…");
    else this.note(this.#leftOut ? `The last ${MOST_LINES.toLocaleString("en")} lines` : "");
  }

  #take(row) {
    if (row.line <= this.#last) return;
    this.#last = row.line;
    this.#waiting.push(row);
    // A hidden page draws rarely: rows beyond the most that it shows are not kept.
    if (this.#waiting.length > 2 * MOST_LINES) this.#waiting.splice(0, MOST_LINES);
  }

  #soon() {
    this.#drawing ||= setTimeout(() => this.#draw(), DRAW_MS);
  }

  #draw() {
    clearTimeout(this.#drawing);
    this.#drawing = 0;
    const rows = this.#waiting.splice(0);
    const added = document.createDocumentFragment();
    for (const row of rows.slice(-MOST_LINES)) added.append(this.#element(row.message, row));
    this.#partialRow?.remove();
    this.#partialRow = null;
    this.#box.append(added);
    while (this.#box.childElementCount > MOST_LINES) {
      this.#box.firstElementChild.remove();
      this.#leftOut = true;
    }
    if (this.#partial) {
      this.#partialRow = this.#element(this.#partial, null);
      this.#box.append(this.#partialRow);
    }
    if (rows.length || this.#partial) this.#note();
    this.#keepAtEnd();
  }

  #element(message, row) {
    const element = document.createElement("div");
    element.className = row ? "row" : "row partial";
    if (row) {
      element.dataset.line = row.line;
      element.title = row.timestamp;
    }
    // A line that is not finished is drawn again: its colours must not carry on.
    writeAnsi(element, message, row ? this.#style : { ...this.#style });
    return element;
  }

  #atEnd() {
    return this.#box.scrollHeight - this.#box.scrollTop - this.#box.clientHeight < NEAR_END_PX;
  }

  #keepAtEnd() {
    if (this.#follow.checked) this.#box.scrollTop = this.#box.scrollHeight;
  }
}
