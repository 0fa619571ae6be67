// How a log's lines are shown, with times and wrapped or not, and what is done with the linked ones: copied, saved.

import { clock } from "../times.js";

const PAGE = 10_000;
const MOST_LINES = 200_000;
const COLOURS = /\x1b\[[0-9;:]*m/g;

export function startOptions(log) {
  const bar = document.querySelector("[data-log-options]");
  const { times, wrap } = bar.elements;
  const began = Number(log.box.dataset.began) * 1000;
  const marked = bar.querySelector("[data-marked]");

  function stored(name) {
    try {
      return localStorage.getItem(`log-${name}`);
    } catch {
      return null; // not allowed: the choice lasts as long as the page
    }
  }

  function store(name, value) {
    try {
      localStorage.setItem(`log-${name}`, value);
    } catch {
      // As above.
    }
  }

  function label(row) {
    const at = Date.parse(row.title);
    const before = Date.parse(row.previousElementSibling?.title);
    if (times.value === "clock") return clock(new Date(at));
    if (times.value === "relative") return `+${((at - began) / 1000).toFixed(1)}`;
    return Number.isNaN(before) ? "" : `+${((at - before) / 1000).toFixed(3)}`;
  }

  // Gives rows that are new their times.
  function dress() {
    if (!times.value) return;
    for (const row of log.box.querySelectorAll(".row[title] > .line:not([data-time])")) row.dataset.time = label(row.parentElement);
  }

  function apply() {
    for (const line of log.box.querySelectorAll("[data-time]")) delete line.dataset.time;
    log.box.classList.toggle("timed", times.value !== "");
    log.box.classList.toggle("unwrapped", !wrap.checked);
    dress();
  }

  function mark(lines) {
    marked.hidden = !lines;
    if (!lines) return;
    const [from, to] = lines;
    marked.querySelector("span").textContent = from === to ? `Line ${from}` : `Lines ${from} to ${to}`;
  }

  async function textOf([from, to]) {
    const texts = [];
    for (let line = from; line <= Math.min(to, from + MOST_LINES - 1);) {
      const { lines } = await log.read({ line: line - 1, limit: Math.min(PAGE, to - line + 1) });
      if (!lines.length) break;
      texts.push(...lines.map((row) => row.message.replace(COLOURS, "")));
      line = lines.at(-1).line + 1;
    }
    return `${texts.join("\n")}\n`;
  }

  async function copy(button) {
    try {
      await navigator.clipboard.writeText(await textOf(log.marked));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }

  async function save() {
    const [from, to] = log.marked;
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([await textOf([from, to])], { type: "text/plain" }));
    link.download = `lines-${from}-${to}.txt`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }

  times.value = stored("times") ?? "";
  wrap.checked = stored("wrap") !== "no";
  bar.addEventListener("submit", (event) => event.preventDefault());
  bar.addEventListener("change", () => {
    store("times", times.value);
    store("wrap", wrap.checked ? "yes" : "no");
    apply();
  });
  bar.querySelector("[data-copy-lines]").addEventListener("click", (event) => copy(event.target));
  bar.querySelector("[data-save-lines]").addEventListener("click", save);
  apply();
  return { dress, mark };
}
