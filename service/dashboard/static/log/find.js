// Search in a log: the server finds the lines, the page goes from one to the next.

const WAIT_MS = 250;
const MOST_LINES = 10_000;

export function startFind(log) {
  const form = document.querySelector("[data-find]");
  const output = form.querySelector("output");
  let lines = [];
  let at = -1;
  let searchedTo = 0;
  let complete = true;
  let turn = 0;
  let timer = 0;

  async function search(again) {
    const mine = ++turn;
    const query = form.query.value;
    if (!again) [lines, at, searchedTo] = [[], -1, 0];
    complete = false;
    paint();
    while (query && !complete && lines.length < MOST_LINES) {
      const wanted = { query, matchCase: form.matchCase.checked, line: searchedTo, limit: MOST_LINES - lines.length };
      const answer = await fetch(log.url("/search", wanted)).catch(() => null);
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
    if (at < 0 && lines.length) go(lines.findIndex((line) => line >= log.middle()));
    count("");
  }

  function count(more) {
    const found = `${lines.length.toLocaleString("en")}${!complete && lines.length >= MOST_LINES ? "+" : ""}`;
    if (!form.query.value) output.textContent = "";
    else if (!lines.length) output.textContent = more || "No line has it";
    else output.textContent = `${at < 0 ? "" : `${(at + 1).toLocaleString("en")} of `}${found}${more}`;
  }

  async function go(to) {
    at = (to + lines.length) % lines.length;
    count("");
    await log.show(lines[at]);
    paint();
  }

  async function step(by) {
    if (!form.query.value) return;
    if (by > 0 && at === lines.length - 1 && log.last > searchedTo) await search(true);
    if (lines.length) await go(at + by);
  }

  function paint() {
    for (const row of log.box.querySelectorAll(".found")) row.classList.remove("found");
    const row = at < 0 ? undefined : log.rowOf(lines[at]);
    row?.classList.add("found");
    if (CSS.highlights) CSS.highlights.set("found", new Highlight(...ranges(row)));
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

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(timer);
    if (timer || !lines.length) search(false);
    else step(1);
    timer = 0;
  });
  form.addEventListener("input", () => {
    clearTimeout(timer);
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
  form.querySelector("[data-previous]").addEventListener("click", () => step(-1));
  form.querySelector("[data-next]").addEventListener("click", () => step(1));
}
