// The table of runs beside their curves: lights a run in both, hides curves, shows other values, and saves the table.

import { onChange } from "../live.js";
import { serverOf } from "../morph.js";
import { cell, make, runColour, save } from "./chart.js";
import { groupRows, groupTable } from "./groups.js";
import { lightPanels, showPanels } from "./panels.js";
import { figure } from "./series.js";

const READ = { min: (one) => one.min, max: (one) => one.max };

// `board` has `runs` by id, the ids that are `listed` and `hidden`, `light` for a run or null, and `redraw`.
export function joinTable(board) {
  const table = () => document.querySelector("[data-runs-table]");
  const heads = () => [...(table()?.tHead.rows[0].cells ?? [])];
  const rows = () => [...(table()?.querySelectorAll("tbody tr[data-run]") ?? [])];
  const runOf = (row) => board.runs.get(row.dataset.run).run;
  const choice = board.form.elements.group;
  const joined = { groups: null, lit: null, light, update, dress, learn };
  // Above the row that is lit, and no part of the table: to paint hundreds of rows again, or to find out how far they
  // reach, takes too long.
  const bar = make("div", "lit-row");
  document.body.append(bar);
  let latest = [];

  // Numbers the runs, which gives them their colours; true if there are new ones.
  function learn() {
    const before = board.runs.size;
    board.listed = new Set(rows().map((row) => row.dataset.run));
    for (const row of rows()) {
      const id = row.dataset.run;
      if (!board.runs.has(id)) board.runs.set(id, { id, source: "job", run: board.runs.size, label: row.querySelector(".name > [id]").textContent });
    }
    const choices = heads().map((head) => head.dataset.choice).filter((name) => name !== undefined);
    choice.replaceChildren(new Option("nothing", ""), ...choices.map((name) => new Option(name, name, false, name === choice.value)));
    choice.closest("label").hidden = choices.length === 0;
    return board.runs.size > before;
  }

  // The number of a run's group, or of the run.
  function curveOf(run) {
    return joined.groups ? joined.groups.findIndex(({ runs }) => runs.has(run)) : run;
  }

  function group() {
    const head = heads().find((one) => one.dataset.choice === choice.value);
    const numbered = rows().map((row) => [row, runOf(row)]).sort((one, other) => one[1] - other[1]);
    joined.groups = choice.value && head ? groupRows(numbered, head.cellIndex) : null;
    document.querySelector("[data-groups]").replaceChildren(...(joined.groups ? [groupTable(table(), joined.groups, choice.value, runColour, runOf)] : []));
  }

  function dress() {
    showValues();
    group();
    for (const row of rows()) {
      const eye = row.querySelector(".eye");
      eye.setAttribute("aria-pressed", String(!board.hidden.has(row.dataset.run)));
      eye.style.color = runColour(curveOf(runOf(row)));
    }
    // They wait until the curves are there.
    if (latest.length) showPanels(heads(), rows().filter((row) => !board.hidden.has(row.dataset.run)), (row) => curveOf(runOf(row)), board);
    mark();
  }

  // The last, lowest or highest value of each metric, the best of a column marked.
  function showValues() {
    const kind = board.form.elements.value.value;
    heads().forEach((head, column) => {
      const { metric, goal } = head.dataset;
      if (metric === undefined || !latest.length) return;
      const byRun = new Map(kind in READ ? latest.filter((one) => one.name === metric).map((one) => [one.id, READ[kind](one)]) : []);
      const known = [...byRun.values()].filter((value) => typeof value === "number");
      const best = goal && known.length > 1 ? Math[goal](...known) : null;
      for (const row of rows()) {
        const shown = row.cells[column];
        const value = byRun.get(row.dataset.run) ?? null;
        const sent = serverOf(shown);
        const [text, number, isBest] = kind in READ ? [figure(value), typeof value === "number" ? value : "", value !== null && value === best] : [sent.textContent, sent.dataset.value, sent.classList.contains("best")];
        if (shown.textContent !== text) shown.textContent = text;
        shown.dataset.value = number;
        shown.classList.toggle("best", isBest);
      }
    });
    // The server orders all pages, by the last values; by others only a whole table can be sorted.
    const paged = kind in READ && document.querySelector(".pages a") !== null;
    for (const head of heads()) if (head.dataset.metric !== undefined) head.ariaSort = paged ? "none" : serverOf(head).ariaSort;
    const sorted = heads().find((head) => kind in READ && head.dataset.metric !== undefined && (head.ariaSort ?? "none") !== "none");
    if (!sorted) return;
    const value = (row) => row.cells[sorted.cellIndex].dataset.value;
    const sign = sorted.ariaSort === "ascending" ? 1 : -1;
    table().tBodies[0].append(...rows().sort((one, other) => (value(one) === "") - (value(other) === "") || sign * (value(one) - value(other))));
  }

  function mark() {
    const row = joined.lit === null ? null : rows().find((one) => runOf(one) === joined.lit);
    bar.hidden = !row;
    if (!row) return;
    const [seen, head, place] = [row.closest(".scroll"), table().tHead, row].map((one) => one.getBoundingClientRect());
    const top = Math.max(place.top, head.bottom);
    const height = Math.max(0, Math.min(place.bottom, seen.bottom) - top);
    Object.assign(bar.style, { left: `${seen.left}px`, width: `${seen.width}px`, height: `${height}px`, transform: `translateY(${top}px)` });
  }

  function light(curve) {
    joined.lit = joined.groups ? null : curve;
    mark();
    lightPanels(curve);
    for (const group of document.querySelectorAll("[data-group]")) group.classList.toggle("lit", Number(group.dataset.group) === curve);
  }

  function update(series) {
    latest = series;
    dress();
  }

  addEventListener("scroll", mark, { capture: true, passive: true });
  const panes = document.querySelector(".panes");
  panes.addEventListener("click", ({ target }) => {
    const row = target.closest(".eye")?.closest("tr");
    if (!row) return;
    if (!board.hidden.delete(row.dataset.run)) board.hidden.add(row.dataset.run);
    dress();
    board.redraw();
  });
  panes.addEventListener("pointerover", ({ target }) => {
    const { run, group: of } = target.closest("[data-run], [data-group]")?.dataset ?? {};
    if (run !== undefined) board.light(curveOf(board.runs.get(run).run));
    else if (of !== undefined) board.light(Number(of));
    else if (!target.closest(".chart")) board.light(null);
  });
  document.addEventListener("click", ({ target }) => {
    if (!target.closest("[data-csv]") || !table()) return;
    const shown = (one) => one.dataset.value || (one.querySelector("[id], .badge") ?? one).innerText.trim().replace(/^–$/, "");
    const line = (cells) => cells.slice(1).map((one) => cell(shown(one))).join(",");
    const text = [heads(), ...rows().map((row) => [...row.cells])].map(line);
    save(new Blob([`${text.join("\n")}\n`], { type: "text/csv" }), "runs.csv");
  });
  onChange((part) => {
    if (part.dataset.part !== "runs") return;
    const more = learn();
    dress();
    if (more) board.reload();
    else board.redraw();
  });
  return joined;
}

// A row a metric that has only one value a run: the value of each of a few runs, else the lowest and the highest.
export function singleTable(metrics, few) {
  const labels = [...new Set(metrics.flatMap(({ series }) => series.map((one) => one.label)))];
  const heads = labels[0] === undefined ? ["Value"] : labels.length <= few ? labels : ["Lowest", "Highest"];
  const table = make("table", "runs singles");
  table.append(make("caption", "", "Single values"), make("thead"), make("tbody"));
  const row = (title, texts, tag) => {
    const line = make("tr");
    line.append(make("th", "name", title), ...texts.map((text) => make(tag, "number nowrap", text)));
    return line;
  };
  table.tHead.append(row("Metric", heads, "th"));
  for (const { title, series, unit } of metrics) {
    const values = series.map((one) => one.last).filter((value) => typeof value === "number");
    const ends = values.length ? [Math.min(...values), Math.max(...values)] : [null, null];
    const texts = labels[0] === undefined ? [series[0].last] : labels.length <= few ? labels.map((label) => series.find((one) => one.label === label)?.last) : ends;
    table.tBodies[0].append(row(title, texts.map((text) => unit(text)), "td"));
  }
  return table;
}
