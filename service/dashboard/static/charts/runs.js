// The table of compared runs beside their curves: lights a run in both, hides curves, sorts, and saves the table.

import { onChange } from "../live.js";
import { cell, runColour, save } from "./chart.js";
import { groupRows, groupTable } from "./groups.js";
import { figure } from "./series.js";

const READ = { last: (one) => one.last, min: (one) => one.min, max: (one) => one.max };

// `board` has `hidden`, a set of runs, `light` for a run or null, and `redraw`.
export function joinTable(table, board) {
  const rows = () => [...table.tBodies[0].rows];
  const runOf = (row) => Number(row.dataset.run);
  const joined = { groups: null };
  let latest = [];
  let order = null; // of the rows: column and direction

  // The number of a run's group, or of the run.
  function curveOf(run) {
    return joined.groups ? joined.groups.findIndex(({ runs }) => runs.has(run)) : run;
  }

  function group() {
    const { value } = board.form.elements.group;
    const head = [...table.tHead.rows[0].cells].find((one) => one.dataset.choice === value);
    const fields = rows().toSorted((one, other) => runOf(one) - runOf(other));
    joined.groups = value && head ? groupRows(fields, head.cellIndex) : null;
    const box = document.querySelector("[data-groups]");
    box.replaceChildren(...(joined.groups ? [groupTable(table, joined.groups, value, runColour)] : []));
  }

  function dress() {
    for (const row of rows()) {
      row.querySelector(".swatch").style.background = runColour(curveOf(runOf(row)));
      row.querySelector("input").checked = !board.hidden.has(runOf(row));
    }
    showValues();
    group();
    sort();
  }

  // The last, lowest or highest value of each metric, the best of a column marked.
  function showValues() {
    const kind = board.form.elements.value.value;
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const { metric, goal } = head.dataset;
      if (metric === undefined || !latest.length) return;
      const byRun = new Map(latest.filter((one) => one.name === metric).map((one) => [one.run, READ[kind](one)]));
      const known = [...byRun.values()].filter((value) => typeof value === "number");
      const best = goal && known.length > 1 ? Math[goal](...known) : null;
      for (const row of rows()) {
        const value = byRun.get(runOf(row)) ?? null;
        const shown = row.cells[column];
        shown.dataset.value = typeof value === "number" ? value : "";
        shown.textContent = figure(value);
        shown.classList.toggle("best", value !== null && value === best);
      }
    });
  }

  function sort() {
    if (!order) return;
    const key = (row) => row.cells[order.column].dataset.value ?? row.cells[order.column].innerText;
    const compare = (one, other) => (key(one) === "") - (key(other) === "") || order.sign * (key(one) - key(other) || key(one).localeCompare(key(other)));
    table.tBodies[0].append(...rows().sort(compare));
  }

  table.tHead.addEventListener("click", (event) => {
    const head = event.target.closest("th");
    if (!event.target.closest("button")) return;
    order = { column: head.cellIndex, sign: order?.column === head.cellIndex ? -order.sign : head.dataset.goal === "max" ? -1 : 1 };
    for (const one of table.tHead.rows[0].cells) one.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", order.sign > 0 ? "ascending" : "descending");
    sort();
  });
  table.addEventListener("change", ({ target }) => {
    const run = runOf(target.closest("tr"));
    if (target.checked) board.hidden.delete(run);
    else board.hidden.add(run);
    board.redraw();
  });
  for (const one of [table, document.querySelector("[data-groups]")]) {
    one.addEventListener("pointerover", ({ target }) => {
      const { run, group: of } = target.closest("[data-run], [data-group]")?.dataset ?? {};
      board.light(run !== undefined ? curveOf(Number(run)) : of !== undefined ? Number(of) : null);
    });
    one.addEventListener("pointerleave", () => board.light(null));
  }
  document.querySelector("[data-csv]").addEventListener("click", () => {
    const line = (cells) => cells.slice(1).map((one) => cell(one.dataset.value || one.innerText.trim())).join(",");
    const text = [[...table.tHead.rows[0].cells], ...rows().map((row) => [...row.cells])].map(line);
    save(new Blob([`${text.join("\n")}\n`], { type: "text/csv" }), "runs.csv");
  });
  onChange((part) => part === table.tBodies[0] && dress());
  dress();
  return Object.assign(joined, {
    light(curve) {
      for (const row of rows()) row.classList.toggle("lit", curve !== null && curveOf(runOf(row)) === curve);
      for (const row of document.querySelectorAll("[data-group]")) row.classList.toggle("lit", Number(row.dataset.group) === curve);
    },
    update(series) {
      latest = series;
      dress();
    },
  });
}
