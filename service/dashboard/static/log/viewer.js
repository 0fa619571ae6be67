// A text of any length, the log of a job or an artifact: a window of at most 140 rows, which follows its end or shows any
// line.

import { plainStyle, writeAnsi } from "./ansi.js";
import { startFind } from "./find.js";
import { LogMap, levelOf } from "./map.js";
import { startOptions } from "./options.js";
import { follow } from "./stream.js";

const PAGE = 100; // more than the rows of a tall screen
const STEP = 40; // rows added when scrolled near an edge; those in view stay among MOST_ROWS
const MOST_ROWS = 140;
const DRAW_MS = 80;
const RETRY_MS = 3000;
const NEAR_PX = 300;
const AT_END_PX = 24;

export async function showLog(box) {
  const log = new Log(box);
  for (;;) {
    try {
      if (await log.start()) return;
      break;
    } catch {
      log.note("The log cannot be read right now; trying again.");
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }
  follow(log);
}

// Lines 20 and 30 for the address `#L20-L30`.
function linkedLines() {
  const found = /^#L(\d{1,15})(?:-L?(\d{1,15}))?$/.exec(location.hash);
  if (!found) return null;
  const ends = [Number(found[1]), Number(found[2] ?? found[1])].sort((one, other) => one - other);
  return ends[0] > 0 ? ends : null;
}

class Log {
  #first = 1; // the line of the first row
  #shown = 0; // the line of the last row
  #waiting = [];
  #partial = "";
  #partialRow = null;
  #drawing = 0;
  #turn = 0;
  #top = 0; // where the box was scrolled to, to follow the end
  #loading = false;
  #complete = false;
  #style = plainStyle();
  #skipped = "";
  #marked = null;
  #follow = document.getElementById("follow");
  #bar = document.querySelector("[data-log-bar]");
  #map;
  #place = document.querySelector("[data-log-place]");
  #line = document.querySelector("[data-log-line]");
  #new = document.querySelector("[data-log-new]");
  #seen = 0; // the last line when the end was shown
  #options;
  last = 0; // the last line that exists

  constructor(box) {
    this.box = box;
    this.starts = Object.entries(JSON.parse(box.dataset.starts));
    box.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    box.addEventListener("click", (event) => this.#clicked(event));
    box.addEventListener("keydown", (event) => {
      if (event.key === "Home") this.#go(1, event);
      if (event.key === "End") this.#go(this.last, event);
    });
    this.#follow.addEventListener("change", () => { if (this.#follow.checked) this.show(this.last); });
    this.#place.addEventListener("input", () => this.show(this.#map.nearest(Number(this.#place.value))));
    this.#line.addEventListener("change", () => {
      const wanted = Math.min(Math.max(1, Math.trunc(Number(this.#line.value)) || 1), this.last);
      this.#line.value = wanted;
      if (location.hash === `#L${wanted}`) this.show(wanted);
      else location.hash = `L${wanted}`;
    });
    window.addEventListener("hashchange", () => this.#showLinked());
    this.#new.addEventListener("click", () => this.show(this.last));
    new ResizeObserver(() => this.#keepAtEnd()).observe(box);
    startFind(this);
    this.#map = new LogMap(this);
    this.#options = startOptions(this);
  }

  // First and last of the linked lines; null: none.
  get marked() {
    return this.#marked;
  }

  // Shows the linked lines, or the end; true if nothing will follow.
  async start() {
    const page = await this.read({ tail: PAGE });
    this.#complete = page.complete;
    this.last = page.total;
    this.#replace(page.lines);
    this.#keepAtEnd();
    this.#showPlace();
    if (linkedLines()) await this.#showLinked();
    else if (this.box.dataset.begin) await this.show(Number(this.box.dataset.begin), "start");
    this.#follow.closest("label").hidden = page.complete;
    this.note();
    this.#map.read();
    return page.complete;
  }

  // An address of the lines' own, such as `/search`, with more parameters.
  url(below, parameters) {
    const address = new URL(this.box.dataset.log, location.href);
    address.pathname += below;
    for (const [name, value] of Object.entries(parameters)) address.searchParams.set(name, value);
    return address;
  }

  async read(place) {
    const answer = await fetch(this.url("", { limit: PAGE, ...place }));
    if (!answer.ok) throw new Error(answer.statusText);
    return answer.json();
  }

  // Shows a line in the middle (or at the top), or the end.
  async show(line, block = "center") {
    const turn = ++this.#turn;
    const end = line >= this.last;
    this.#follow.checked = end;
    if (!this.#holds(line) || (end && this.#shown < this.last)) {
      try {
        const page = await this.read(end ? { tail: PAGE } : { line: Math.max(0, Math.trunc(line - PAGE / 2)) });
        if (turn !== this.#turn) return;
        this.last = Math.max(this.last, page.total);
        this.#replace(page.lines);
      } catch {
        this.note("The log cannot be read right now.");
        return;
      }
    }
    this.#mark();
    if (end) {
      this.#follow.checked = true; // a scroll event may have unchecked it while the rows were read
      this.#keepAtEnd();
    } else this.#scrollTo(this.rowOf(line), block);
    this.#showPlace();
  }

  // The line in the middle of what is seen.
  middle() {
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    return Math.round(this.#first + ((scrollTop + clientHeight / 2) / Math.max(1, scrollHeight)) * (this.#shown - this.#first));
  }

  // The row of a line, if it is drawn.
  rowOf(line) {
    return this.#holds(line) ? this.box.children[line - this.#first] : undefined;
  }

  // A line of the stream.
  line(row) {
    if (row.line <= this.last) return;
    this.last = row.line;
    this.#map.add(row);
    this.#partial = "";
    if (this.#follow.checked || row.line === this.#end() + 1) this.#waiting.push(row);
    if (this.#waiting.length > PAGE) this.#waiting.shift();
    this.#soon();
  }

  partial({ message }) {
    this.#partial = message;
    this.#soon();
  }

  gap({ from, to }) {
    this.last = Math.max(this.last, to);
    this.#skipped = `Lines ${from.toLocaleString("en")} to ${to.toLocaleString("en")} came too fast to show; scroll up to read them`;
    this.#waiting = [];
    this.#map.read();
    this.#soon();
  }

  // New lines that were asked for.
  page({ lines, partial, total }) {
    lines.forEach((row) => this.line(row));
    this.last = Math.max(this.last, total);
    this.partial({ message: partial ?? "" });
  }

  end() {
    this.#complete = true;
    this.#partial = "";
    this.#draw();
    this.#follow.closest("label").hidden = true;
  }

  note(text) {
    const usual = this.last ? this.#skipped : this.#complete ? "Nothing was printed." : "Waiting for output…";
    document.querySelector("[data-log-note]").textContent = text ?? usual;
  }

  // Scrolls the box to a row, and the page only if the row is out of view: else what is clicked next would move away.
  #scrollTo(row, block) {
    if (!row) return;
    const [own, outer] = [row.getBoundingClientRect(), this.box.getBoundingClientRect()];
    this.box.scrollTop += own.top - outer.top - (block === "center" ? (outer.height - own.height) / 2 : 0);
    row.scrollIntoView({ block: "nearest" });
  }

  #end() {
    return this.#waiting.at(-1)?.line ?? this.#shown;
  }

  #holds(line) {
    return line >= this.#first && line <= this.#shown;
  }

  #soon() {
    this.#drawing ||= setTimeout(() => this.#draw(), DRAW_MS);
  }

  #draw() {
    clearTimeout(this.#drawing);
    this.#drawing = 0;
    // Scrolled up since, though the event of it has not come yet.
    if (this.box.scrollTop < this.#top && !this.#atBottom()) this.#follow.checked = false;
    const rows = this.#waiting.splice(0);
    const follows = rows.length > 0 && rows[0].line === this.#shown + 1;
    // Rows that are read must not be removed for new ones.
    const room = this.#follow.checked ? rows.length : this.#first + MOST_ROWS - 1 - this.#shown;
    if (rows.length && !follows && this.#follow.checked) this.#replace(rows);
    else if (follows && room > 0) this.#append(rows.slice(0, room));
    this.#drawPartial();
    this.note();
    this.#keepAtEnd();
    this.#showPlace();
  }

  #drawPartial() {
    this.#partialRow?.remove();
    this.#partialRow = null;
    if (!this.#partial || this.#shown < this.last) return;
    // A line that is not finished is drawn again: its colours must not carry on.
    this.#partialRow = this.element(this.#partial, null, { ...this.#style });
    this.box.append(this.#partialRow);
  }

  #replace(rows) {
    this.#partialRow = null;
    this.#style = plainStyle();
    this.box.replaceChildren(...rows.map((row) => this.element(row.message, row, this.#style)));
    this.#first = rows[0]?.line ?? 1;
    this.#shown = rows.at(-1)?.line ?? 0;
    this.#dress();
  }

  #append(rows) {
    this.#partialRow?.remove();
    this.box.append(...rows.map((row) => this.element(row.message, row, this.#style)));
    this.#shown = rows.at(-1).line;
    const height = this.box.scrollHeight;
    while (this.#shown - this.#first >= MOST_ROWS) {
      this.box.firstElementChild.remove();
      this.#first += 1;
    }
    this.box.scrollTop -= height - this.box.scrollHeight;
    this.#dress();
  }

  #prepend(rows) {
    const style = plainStyle();
    const height = this.box.scrollHeight;
    this.box.prepend(...rows.map((row) => this.element(row.message, row, style)));
    this.box.scrollTop += this.box.scrollHeight - height;
    this.#first = rows[0].line;
    while (this.#shown - this.#first >= MOST_ROWS) {
      this.#partialRow?.remove();
      this.#partialRow = null;
      this.box.lastElementChild.remove();
      this.#shown -= 1;
    }
    this.#dress();
  }

  #dress() {
    this.#options.dress();
    this.box.style.setProperty("--digits", Math.max(3, String(this.last).length));
    this.#mark();
  }

  // The row of a line.
  element(message, row, style) {
    const element = document.createElement("div");
    element.className = row ? `row ${levelOf(message)}` : "row partial";
    const number = document.createElement("a");
    number.className = "line";
    if (row) {
      element.dataset.line = row.line;
      if (row.timestamp) element.title = row.timestamp;
      number.href = `#L${row.line}`;
      number.tabIndex = -1;
      number.dataset.number = row.line;
      number.setAttribute("aria-label", `Line ${row.line}`);
    }
    element.append(number);
    writeAnsi(element, message, style);
    return element;
  }

  // Marks the linked lines, and those with which further attempts begin.
  #mark() {
    this.#marked = linkedLines();
    this.#options.mark(this.#marked);
    for (const row of this.box.querySelectorAll(".marked, .begins")) row.classList.remove("marked", "begins");
    const [from, to] = this.#marked ?? [1, 0];
    for (let line = Math.max(from, this.#first); line <= Math.min(to, this.#shown); line += 1) {
      this.rowOf(line).classList.add("marked");
    }
    for (const [attempt, line] of this.starts) {
      const row = this.rowOf(line);
      if (!row || line === 1) continue;
      row.dataset.begins = attempt;
      row.classList.add("begins");
    }
  }

  async #showLinked() {
    const lines = linkedLines();
    if (!lines) return this.#mark();
    await this.show(Math.min(lines[0], this.last));
    this.box.scrollIntoView({ block: "nearest" });
  }

  #clicked(event) {
    const line = Number(event.target.closest("a.line")?.dataset.number);
    if (!line || !event.shiftKey || !this.#marked) return;
    event.preventDefault();
    const [from, to] = this.#marked;
    history.replaceState(null, "", `#L${Math.min(from, line)}-L${line < from ? to : line}`);
    this.#mark();
  }

  #go(line, event) {
    event.preventDefault();
    this.show(line);
  }

  #scrolled() {
    // A box that became lower is not at its end, without having been scrolled up.
    const kept = this.#follow.checked && this.box.scrollTop >= this.#top;
    this.#follow.checked = kept || ((this.#follow.checked || this.#end() >= this.last) && this.#atBottom());
    this.#showPlace();
    const { scrollTop, scrollHeight, clientHeight } = this.box;
    if (scrollTop < NEAR_PX && this.#first > 1) this.#load(Math.max(0, this.#first - 1 - STEP), this.#first - 1);
    else if (scrollHeight - scrollTop - clientHeight < NEAR_PX && this.#shown < this.last) this.#load(this.#shown, this.last);
  }

  // Reads the rows after line `after`, up to `to`, which are next to those shown.
  async #load(after, to) {
    if (this.#loading) return;
    this.#loading = true;
    const turn = this.#turn;
    try {
      const { lines } = await this.read({ line: after, limit: Math.min(STEP, to - after) });
      if (turn !== this.#turn || !lines.length) return;
      if (lines.at(-1).line === this.#first - 1) this.#prepend(lines);
      else if (lines[0].line === this.#shown + 1) this.#append(lines);
    } catch {
      this.note("The log cannot be read right now.");
    } finally {
      this.#loading = false;
    }
  }

  #atBottom() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < AT_END_PX;
  }

  #keepAtEnd() {
    if (!this.#follow.checked) return;
    this.box.scrollTop = this.box.scrollHeight;
    this.#top = this.box.scrollTop;
  }

  // Shows in the bar where in the log the rows are.
  #showPlace() {
    this.#bar.hidden = this.last === 0;
    const line = this.#follow.checked ? this.last : this.middle();
    if (this.#follow.checked) this.#seen = this.last;
    const unseen = this.#seen ? this.last - this.#seen : 0;
    this.#new.hidden = unseen === 0;
    this.#new.textContent = `${unseen.toLocaleString("en")} new line${unseen === 1 ? "" : "s"}`;
    this.#place.max = this.#line.max = Math.max(1, this.last);
    if (document.activeElement !== this.#place) this.#place.value = line;
    this.#map.draw();
    this.#place.setAttribute("aria-valuetext", `line ${line} of ${this.last}`);
    document.querySelector("[data-log-total]").textContent = this.last.toLocaleString("en");
  }
}
