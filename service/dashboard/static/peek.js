// A job beside the table of runs: its header and its overview, as its own page has them.

import { onChange } from "./live.js";
import { note, update } from "./morph.js";
import { isCommand } from "./table.js";

const WIDE = matchMedia("(min-width: 1000px)");

export function openBeside(enliven) {
  const aside = document.getElementById("peek");
  const rows = () => [...document.querySelectorAll("[data-runs-table] tbody tr[data-run]")];
  let run = "";
  let shown = "";
  let live = false;

  function close() {
    [run, shown] = ["", ""];
    hide(true);
    aside.replaceChildren();
    mark();
  }

  function hide(hidden) {
    aside.hidden = hidden;
    aside.closest("main").classList.toggle("beside", !hidden);
  }

  function mark() {
    for (const row of rows()) row.classList.toggle("beside", row.dataset.run === run);
  }

  async function show(wanted) {
    run = wanted;
    mark();
    const answer = await fetch(`/ui/jobs/${encodeURIComponent(run)}`, { headers: { Accept: "text/html" } }).catch(() => null);
    if (run !== wanted) return;
    if (!answer?.ok) return close();
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const main = page.querySelector("main");
    if (run !== wanted || !main) return;
    live = main.dataset.live === "yes";
    for (const link of page.querySelectorAll("link[rel=stylesheet]")) {
      if (!document.querySelector(`link[href="${CSS.escape(link.getAttribute("href"))}"]`)) document.head.append(document.adoptNode(link));
    }
    // Ids and parts are those of this page; actions are on the job's own.
    main.querySelectorAll(".actions, .more, .stale, .edit").forEach((element) => element.remove());
    for (const element of main.querySelectorAll("*")) for (const name of ["id", "data-part", "aria-labelledby", "aria-live"]) element.removeAttribute(name);
    const name = document.createElement("a");
    name.href = `/ui/jobs/${run}`;
    name.append(...main.querySelector("h1").childNodes);
    const title = document.createElement("h2");
    title.append(name);
    main.querySelector("h1").replaceWith(title);
    hide(false);
    const fresh = aside.cloneNode();
    fresh.append(...document.adoptNode(main).children);
    if (shown === run) update(aside, fresh);
    else showOther(fresh);
    shown = run;
    enliven(aside);
  }

  function showOther(fresh) {
    const button = Object.assign(document.createElement("button"), { type: "button", className: "quiet", textContent: "✕", ariaLabel: "Close", title: "Close (Escape)" });
    button.addEventListener("click", close);
    const { scrollTop } = aside;
    aside.replaceChildren(...fresh.children);
    note(aside);
    aside.querySelector(".heading").append(button);
    aside.scrollTop = scrollTop;
  }

  document.addEventListener("run", ({ detail: row }) => {
    if (WIDE.matches && row.dataset.run) show(row.dataset.run);
  });
  document.addEventListener("click", ({ target }) => {
    const row = target.closest("[data-runs-table] tbody tr[data-run]");
    if (row && WIDE.matches && !target.closest("a, button, input, label, summary")) show(row.dataset.run);
  });
  document.addEventListener("keydown", (event) => {
    if (!run || !isCommand(event)) return;
    if (event.key === "Escape") close();
    if (event.key === "Enter" && !event.target.closest("a, button, summary")) location.assign(`/ui/jobs/${run}`);
  });
  onChange((part) => {
    if (part.dataset.part !== "runs" || !run) return;
    mark();
    if (live) show(run);
  });
}
