// Search in a log: the server finds the lines, the page goes from one to the next, or lists them.

import { plainStyle } from "./ansi.js";

const WAIT_MS = 250;
const MOST_LINES = 10_000;
const MOST_ROWS = 500;

export function startFind(log) {
  const form = document.querySelector("[data-find]");
  const output = form.querySelector("output");
  const list = document.querySelector("[data-matches]");
  let lines = [];
  let at = -1;
  let searchedTo = 0;
  let complete = true;
  let errors = false;
  let turn = 0;
  let timer = 0;

  function wanted(more) {
    const what = errors ? { errors: true } : { query: form.query.value, matchCase: form.matchCase.checked };
    return log.url("/search", { ...what, ...more });
  }

  const active = () => errors || form.query.value !== "";

  async function search(again) {
    const mine = ++turn;
    if (!again) [lines, at, searchedTo] = [[], -1, 0];
    complete = false;
    paint();
    while (active() && !complete && lines.length < MOST_LINES) {
      const answer = await fetch(wanted({ line: searchedTo, limit: MOST_LINES - lines.length })).catch(() => null);
      if (mine !== turn) return;
      if (!answer?.ok) {
        output.textContent = "The search failed; try again";
        return;
      }
      const page = await answer.json();
      if (mine !== turn) return;
      lines.push(...page.lines);
      ({ searchedTo, complete } = page);
      count(complete ? "" : "…");
    }
    if (form.only.checked) await listMatches();
    else if (at < 0 && lines.length) go(lines.findIndex((line) => line >= log.middle()));
    count("");
  }

  function count(more) {
    const found = `${lines.length.toLocaleString("en")}${!complete && lines.length >= MOST_LINES ? "+" : ""}`;
    if (!active()) output.textContent = "";
    else if (!lines.length) output.textContent = more || (errors ? "No line looks like an error" : "No matches");
    else output.textContent = `${at < 0 ? "" : `${(at + 1).toLocaleString("en")} of `}${found}${more}`;
  }

  async function go(to) {
    at = (to + lines.length) % lines.length;
    count("");
    await log.show(lines[at]);
    paint();
  }

  // Only the lines that match, in place of the log.
  async function listMatches() {
    const mine = turn;
    const shown = form.only.checked && active();
    list.hidden = !shown;
    log.box.hidden = shown;
    if (!shown) return;
    const rows = [];
    for (let from = 0, done = false; !done && rows.length < MOST_ROWS;) {
      const answer = await fetch(wanted({ line: from, limit: MOST_ROWS - rows.length, texts: true })).catch(() => null);
      if (!answer?.ok || mine !== turn) return;
      const page = await answer.json();
      page.lines.forEach((line, place) => rows.push([line, page.texts[place]]));
      [from, done] = [page.searchedTo, page.complete];
    }
    list.style.setProperty("--digits", Math.max(3, String(log.last).length));
    list.replaceChildren(...rows.map(([line, text]) => log.element(text, { line }, plainStyle())));
    if (rows.length === MOST_ROWS) list.append(`The first ${MOST_ROWS} lines are shown.`);
  }

  async function step(by) {
    if (!active()) return;
    form.only.checked = false;
    await listMatches();
    if (by > 0 && at === lines.length - 1 && log.last > searchedTo) await search(true);
    if (lines.length) await go(at + by);
  }

  function paint() {
    for (const row of log.box.querySelectorAll(".found")) row.classList.remove("found");
    const row = at < 0 ? undefined : log.rowOf(lines[at]);
    row?.classList.add("found");
    if (CSS.highlights && !errors) CSS.highlights.set("found", new Highlight(...ranges(row)));
  }

  // The found text in the row, as far as it is in one piece of it.
  function ranges(row) {
    if (!row) return [];
    const fold = (text) => (form.matchCase.checked ? text : text.toLowerCase());
    const needle = fold(form.query.value);
    const found = [];
    const walker = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      for (let from = fold(node.data).indexOf(needle); from >= 0; from = fold(node.data).indexOf(needle, from + needle.length)) {
        const range = new Range();
        range.setStart(node, from);
        range.setEnd(node, Math.min(from + needle.length, node.data.length));
        found.push(range);
      }
    }
    return found;
  }

  const linked = new URLSearchParams(location.search).get("find");
  if (linked) {
    [form.query.value, form.only.checked] = [linked, true];
    search(false);
  }

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    if (timer || !lines.length) search(false);
    else step(1);
    timer = 0;
  });
  form.addEventListener("input", (event) => {
    clearTimeout(timer);
    if (event.target === form.only) return void listMatches();
    errors = false;
    timer = setTimeout(() => {
      timer = 0;
      search(false);
    }, WAIT_MS);
  });
  form.query.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.shiftKey) return;
    event.preventDefault();
    step(-1);
  });
  form.querySelector("[data-errors]").addEventListener("click", () => {
    if (errors) return void step(1);
    errors = true;
    form.query.value = "";
    search(false);
  });
  list.addEventListener("click", (event) => {
    if (!event.target.closest("a.line")) return;
    form.only.checked = false;
    listMatches();
  });
  form.querySelector("[data-previous]").addEventListener("click", () => step(-1));
  form.querySelector("[data-next]").addEventListener("click", () => step(1));
}
