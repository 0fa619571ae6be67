// Runs grouped by a parameter: the mean curve of each group with its spread, and a table of what its runs reached.

import { make } from "./chart.js";
import { figure } from "./series.js";

const MOST_PLACES = 300;

// The groups in order of their values: a label, and the numbers of the runs.
export function groupRows(rows, column) {
  const found = new Map();
  for (const [row, run] of rows) {
    const label = row.cells[column].innerText || "–";
    const { value = label } = row.cells[column].dataset;
    if (!found.has(value)) found.set(value, { label, value, runs: new Set() });
    found.get(value).runs.add(run);
  }
  return [...found.values()].sort((one, other) => one.value - other.value || one.value.localeCompare(other.value));
}

// One series for each group and metric, with the standard deviation of its runs around their mean.
export function meanSeries(series, groups) {
  const names = [...new Set(series.map((one) => one.name))];
  return names.flatMap((name) => groups.flatMap(({ label, runs }, run) => {
    const members = series.filter((one) => one.name === name && runs.has(one.run));
    return members.length ? [{ name, source: "job", run, label, ...meanCurve(members) }] : [];
  }));
}

function meanCurve(members) {
  const every = [...new Set(members.flatMap((one) => one.x))].sort((one, other) => one - other);
  const x = every.length <= MOST_PLACES ? every : Array.from({ length: MOST_PLACES }, (_, at) => every[Math.round((at * (every.length - 1)) / (MOST_PLACES - 1))]);
  const values = x.map(() => []);
  for (const one of members) addTo(values, x, one);
  const found = values.map(spread);
  const known = found.map(({ mean }) => mean).filter((mean) => mean !== null);
  return {
    x,
    y: found.map(({ mean }) => mean),
    low: found.map(({ mean, deviation, least }) => (mean === null ? null : Math.max(least, mean - deviation))),
    high: found.map(({ mean, deviation, most }) => (mean === null ? null : Math.min(most, mean + deviation))),
    last: known.at(-1) ?? null,
    min: Math.min(...members.map((one) => one.min ?? Infinity)),
    max: Math.max(...members.map((one) => one.max ?? -Infinity)),
  };
}

// The value of a curve at each place from its first to its last point, on the line between two of them.
function addTo(values, places, { x, y }) {
  let at = 0;
  places.forEach((place, column) => {
    while (at < x.length - 1 && x[at + 1] <= place) at += 1;
    if (place < x[0] || place > x.at(-1) || y[at] === null) return;
    const share = x[at] === place || y[at + 1] === null ? 0 : (place - x[at]) / (x[at + 1] - x[at]);
    values[column].push(share ? y[at] + share * (y[at + 1] - y[at]) : y[at]);
  });
}

function spread(values) {
  if (!values.length) return { mean: null };
  const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
  const squares = values.reduce((sum, value) => sum + (value - mean) ** 2, 0);
  return { mean, deviation: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : 0, least: Math.min(...values), most: Math.max(...values) };
}

// A row a group: mean and standard deviation of each metric's values in the table of runs, the best mean marked.
export function groupTable(table, groups, title, swatchOf, runOf) {
  const heads = [...table.tHead.rows[0].cells];
  const metrics = heads.map((head, column) => ({ column, ...head.dataset })).filter(({ metric }) => metric !== undefined);
  const rows = [...table.tBodies[0].rows].filter((row) => row.dataset.run);
  const results = metrics.map(({ column, goal }) => {
    const found = groups.map(({ runs }) => spread(rows.filter((row) => runs.has(runOf(row)) && row.cells[column].dataset.value !== "").map((row) => Number(row.cells[column].dataset.value))));
    const means = found.map(({ mean }) => mean).filter((mean) => mean !== null && mean !== undefined);
    return { found, best: goal && new Set(means).size > 1 ? Math[goal](...means) : null };
  });
  const cell = (text, name = "number nowrap", tag = "td") => make(tag, name, text);
  const head = make("tr");
  head.append(cell(title, "", "th"), cell("Runs", "number", "th"), ...metrics.map(({ metric }) => cell(metric, "number", "th")));
  const body = groups.map(({ label, runs }, group) => {
    const row = make("tr");
    const name = cell("", "name", "th");
    const swatch = make("span", "swatch");
    swatch.style.background = swatchOf(group);
    name.append(swatch, label);
    row.dataset.group = group;
    row.append(name, cell(String(runs.size)));
    row.cells[1].dataset.label = "Runs";
    results.forEach(({ found, best }, at) => {
      const { mean, deviation } = found[group];
      const shown = cell(mean === null ? "–" : `${figure(mean)} ± ${figure(deviation)}`, `number nowrap${mean !== null && mean === best ? " best" : ""}`);
      shown.dataset.label = metrics[at].metric;
      row.append(shown);
    });
    return row;
  });
  const whole = make("table", "cards runs groups");
  whole.append(make("thead"), make("tbody"));
  whole.tHead.append(head);
  whole.tBodies[0].append(...body);
  return whole;
}
