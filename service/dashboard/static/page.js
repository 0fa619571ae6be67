// The entry point of every page: starts the parts that update themselves.

import { showCurves, showMetrics } from "./charts/board.js";
import { completeQuery } from "./complete.js";
import { offerCopies } from "./copy.js";
import { checkWhileTyping } from "./job_form.js";
import { keepFresh, onChange, stayOnPage, tellOfEnd } from "./live.js";
import { colourLines } from "./log/map.js";
import { showLog } from "./log/viewer.js";
import { listenForKeys } from "./palette.js";
import { openBeside } from "./peek.js";
import { sortTables } from "./sort.js";
import { isCommand, selectRows } from "./table.js";
import { tellTimes } from "./times.js";
import { resizeTable } from "./widths.js";

function enliven(part) {
  tellTimes(part);
  offerCopies(part);
  colourLines(part);
}

enliven(document);
onChange(enliven);
setInterval(() => tellTimes(document), 10_000);
setInterval(() => tellTimes(document, "time[data-coming]"), 1000);

document.addEventListener("click", ({ target }) => {
  if (target.closest("[data-switch=times]")) tellTimes(document);
  for (const menu of document.querySelectorAll(".menu[open]")) if (!menu.contains(target)) menu.open = false;
});
document.addEventListener("keydown", ({ key, target }) => {
  const menu = key === "Escape" && target.closest(".menu[open]");
  if (!menu) return;
  menu.open = false;
  menu.querySelector("form")?.reset();
  menu.querySelector("summary").focus();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.matches(".edit textarea")) event.target.form.requestSubmit();
});
document.addEventListener("toggle", ({ target }) => {
  if (target.open && target.matches(".edit")) target.querySelector("input, textarea").focus();
}, true);

if (document.getElementById("go-to")) listenForKeys();

// A file of a folder to the next one; the list is scrolled to it.
document.addEventListener("keydown", (event) => {
  const step = { j: "next", k: "prev" }[event.key];
  if (step && isCommand(event)) document.querySelector(`[data-step=${step}]`)?.click();
});
document.querySelector(".files-beside [aria-current]")?.scrollIntoView({ block: "nearest" });

const table = document.querySelector("[data-table]");
if (table) selectRows(table);

if (document.getElementById("peek")) openBeside(enliven);

if (document.querySelector("[data-sorts], [data-ordered]")) sortTables();

document.querySelectorAll("[data-complete]").forEach(completeQuery);

// A view is what the page shows now, with the options that scripts keep in its address.
document.addEventListener("submit", ({ target }) => {
  const address = target.querySelector("[data-address]");
  if (address) address.value = location.pathname + location.search;
});

if (document.querySelector("main.workspace")) {
  stayOnPage();
  resizeTable();
}

// A phone's pages have fewer rows.
document.cookie = `narrow=${matchMedia("(max-width: 760px)").matches ? 1 : ""}; path=/ui/jobs; SameSite=Lax`;

const job = document.querySelector("[data-job-form]");
if (job) checkWhileTyping(job, enliven);

// A link to lines leads on to the page of the log.
const linesAt = document.querySelector("main").dataset.linesAt;
if (linesAt && /^#L\d/.test(location.hash)) location.replace(linesAt + location.hash);

// Nor does a form send the line that a link leads to.
for (const next of document.querySelectorAll(".sign-in [name=next]")) next.value += location.hash;

const log = document.querySelector("[data-log]");
if (log) showLog(log);

const metrics = document.querySelector("[data-metrics]");
if (metrics) showMetrics(metrics);
showCurves();

// A page that the server had no time for.
const { again } = document.querySelector("main").dataset;
if (again) setTimeout(() => location.reload(), 1000 * Number(again));

document.querySelectorAll("[data-tell]").forEach(tellOfEnd);
keepFresh();
