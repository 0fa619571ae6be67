// Panels of many runs, drawn from their table: parallel coordinates, a scatter, and how a metric follows parameters.

import { make, runColour } from "./chart.js";
import { figure } from "./series.js";

const FEWEST = 3; // runs
const MOST_AXES = 8;
const [WIDTH, HEIGHT, EDGE, SIDE] = [460, 200, 38, 60];
const MOST_LABELS = 12;
const WIDE = 50; // times the lowest value: the axis is logarithmic
const ORDER = "order of submission";
const chosen = { x: ORDER };

export function showPanels(heads, rows, curveOf, board) {
  const box = document.querySelector("[data-panels]");
  const fields = columnsOf(heads, rows);
  const params = fields.filter(({ param }) => param);
  const metrics = fields.filter(({ metric, numeric }) => metric && numeric);
  const target = metrics.find(({ name }) => name === (chosen.y ?? box.closest("section").dataset.main)) ?? metrics[0];
  box.hidden = rows.length < FEWEST || !target || !params.length;
  if (box.hidden) return;
  const runs = rows.map((row, at) => ({ at, curve: curveOf(row), label: row.querySelector(".name > [id]").textContent }));
  const open = [...box.querySelectorAll("details")].map((one) => one.open);
  box.replaceChildren(
    panel(`Parameters and ${target.name}`, parallel([...params.slice(0, MOST_AXES - 1), target], runs, board), open[0]),
    panel("Scatter", scatter(fields, metrics, target, runs, board, () => showPanels(heads, rows, curveOf, board)), open[1]),
    panel(`What ${target.name} follows`, correlations(params, target), open[2]),
  );
}

function panel(title, content, open = true) {
  const box = Object.assign(make("details", "panel"), { open });
  box.append(make("summary", "", title), ...content);
  return box;
}

// The columns that differ: their values as numbers, or as texts if not all are numbers.
function columnsOf(heads, rows) {
  const order = rows.map((row) => Number(row.dataset.at));
  const ranks = [...order].sort((one, other) => one - other);
  const fields = [{ name: ORDER, whole: true, values: order.map((at) => ranks.indexOf(at) + 1) }];
  heads.forEach((head, column) => {
    const { metric, param, goal } = head.dataset;
    if (metric === undefined && param === undefined && !["Duration", "Cost"].includes(head.textContent.trim())) return;
    const texts = rows.map((row) => row.cells[column].dataset.value ?? row.cells[column].textContent);
    const numeric = texts.every((text) => text === "" || Number.isFinite(Number(text)));
    const values = texts.map((text) => (text === "" ? null : numeric ? Number(text) : text));
    if (new Set(values).size > 1) fields.push({ name: metric ?? head.textContent.trim(), metric: metric !== undefined, param: param !== undefined, goal, numeric, values });
  });
  return fields.map((field) => ({ ...field, numeric: field.numeric ?? true }));
}

// The place of a value between 0 and 1, and labels of places.
function scale({ values, numeric, whole }) {
  const known = values.filter((value) => value !== null);
  if (!numeric) {
    const names = [...new Set(known)].sort();
    const place = (value) => (names.length > 1 ? names.indexOf(value) / (names.length - 1) : 0.5);
    return { place, labels: names.length > MOST_LABELS ? [] : names.map((name) => [place(name), name]) };
  }
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const log = !whole && low > 0 && high / low > WIDE;
  const at = log ? Math.log : (value) => value;
  const place = (value) => (high === low ? 0.5 : (at(value) - at(low)) / (at(high) - at(low)));
  return { place, labels: [[0, figure(low)], [1, figure(high)]] };
}

function shape(name, attributes, title) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (title !== undefined) element.append(Object.assign(document.createElementNS("http://www.w3.org/2000/svg", "title"), { textContent: title }));
  return element;
}

function drawing(label) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + 2 * EDGE}`, role: "img", "aria-label": label });
  svg.append(shape("g", { class: "curves" }), shape("g", { class: "lit" }));
  return svg;
}

// Fades all curves together but those of a run or group, which are drawn again above them: a change of the style of
// each curve takes too long.
export function lightPanels(curve) {
  for (const curves of document.querySelectorAll("[data-panels] .curves")) {
    curves.classList.toggle("faded", curve !== null);
    curves.nextSibling.replaceChildren(...[...curves.querySelectorAll(`[data-curve="${curve}"]`)].map((one) => one.cloneNode(true)));
  }
}

function text(x, y, anchor, content) {
  const element = shape("text", { x, y, "text-anchor": anchor });
  element.textContent = content;
  return element;
}

// What is drawn of a run: lit by the mouse here, in the table and in the curves.
function ofRun(element, run, board) {
  element.dataset.curve = run.curve;
  element.style.setProperty("--ink", runColour(run.curve));
  element.addEventListener("pointerenter", () => board.light(run.curve));
  return element;
}

function parallel(fields, runs, board) {
  const svg = drawing(`Parallel coordinates of ${runs.length} runs`);
  const x = (axis) => SIDE + (axis * (WIDTH - 2 * SIDE)) / Math.max(1, fields.length - 1);
  const y = (place) => EDGE + (1 - place) * HEIGHT;
  const scales = fields.map(scale);
  for (const run of runs) {
    const points = fields.map(({ values }, axis) => (values[run.at] === null ? null : `${x(axis)},${y(scales[axis].place(values[run.at]))}`)).filter(Boolean);
    svg.firstChild.append(ofRun(shape("polyline", { points: points.join(" ") }, run.label), run, board));
  }
  // Names in two lines, the ends of numbers outside of the axes, other values beside them.
  fields.forEach(({ name, numeric }, axis) => {
    svg.append(shape("line", { x1: x(axis), x2: x(axis), y1: EDGE, y2: EDGE + HEIGHT }), text(x(axis), 10 + 12 * (axis % 2), "middle", short(name)));
    for (const [place, label] of scales[axis].labels) svg.append(numeric ? text(x(axis), y(place) + (place ? -4 : 12), "middle", label) : text(x(axis) + 4, y(place) + (place === 1 ? 10 : -3), "start", short(label)));
  });
  return [svg];
}

function short(name) {
  return name.length > 14 ? `${name.slice(0, 13)}…` : name;
}

function scatter(fields, metrics, target, runs, board, redraw) {
  const across = fields.find(({ name }) => name === chosen.x) ?? fields[0];
  const choose = (label, key, among, current) => {
    const box = make("label", "muted", `${label} `);
    const menu = make("select");
    menu.append(...among.map(({ name }) => new Option(name, name, false, name === current.name)));
    menu.addEventListener("change", () => {
      chosen[key] = menu.value;
      redraw();
    });
    box.append(menu);
    return box;
  };
  const choices = make("div", "chart-options");
  choices.append(choose("x", "x", fields, across), choose("y", "y", metrics, target));
  const svg = drawing(`${target.name} by ${across.name}`);
  const [wide, high] = [scale(across), scale(target)];
  const toX = (place) => SIDE + 10 + place * (WIDTH - SIDE - 24);
  const x = (value) => toX(wide.place(value));
  const y = (value) => EDGE + (1 - high.place(value)) * HEIGHT;
  svg.append(shape("line", { x1: SIDE, x2: SIDE, y1: EDGE, y2: EDGE + HEIGHT }), shape("line", { x1: SIDE, x2: WIDTH, y1: EDGE + HEIGHT + 6, y2: EDGE + HEIGHT + 6 }));
  for (const [place, label] of wide.labels) svg.append(text(toX(place), EDGE + HEIGHT + 20, place === 0 ? "start" : place === 1 ? "end" : "middle", short(label)));
  for (const [place, label] of high.labels) svg.append(text(SIDE - 4, EDGE + (1 - place) * HEIGHT + 4, "end", label));
  const known = runs.filter(({ at }) => across.values[at] !== null && target.values[at] !== null);
  if (across.whole && target.goal) svg.append(bestSoFar(known, across, target, x, y));
  for (const run of known) {
    const [first, second] = [across.values[run.at], target.values[run.at]];
    const title = `${run.label}: ${target.name} ${figure(second)}, ${across.name} ${typeof first === "number" ? figure(first) : first}`;
    svg.firstChild.append(ofRun(shape("circle", { cx: x(first), cy: y(second), r: 4 }, title), run, board));
  }
  return [choices, svg];
}

// Steps: the best value of the runs up to each one.
function bestSoFar(runs, across, target, x, y) {
  const sorted = runs.map(({ at }) => [across.values[at], target.values[at]]).sort((one, other) => one[0] - other[0]);
  let best = sorted[0]?.[1];
  const points = [];
  for (const [place, value] of sorted) {
    points.push(`${x(place)},${y(best)}`);
    best = Math[target.goal](best, value);
    points.push(`${x(place)},${y(best)}`);
  }
  return shape("polyline", { points: points.join(" "), class: "front" }, "best so far");
}

// Spearman's rank correlation of a metric with each parameter that has an order, the strongest first.
function correlations(params, target) {
  const table = make("table", "runs");
  table.append(make("thead"), make("tbody"));
  const line = (texts, tag) => {
    const row = make("tr");
    row.append(...texts.map((content, at) => make(at ? tag : "th", at ? "number" : "name", content)));
    return row;
  };
  table.tHead.append(line(["Parameter", "Rank correlation", "Runs"], "th"));
  const found = params.map(({ name, values, numeric }) => {
    const names = [...new Set(values.filter((value) => value !== null))];
    const ordered = numeric ? values : names.length === 2 ? values.map((value) => (value === null ? null : names.indexOf(value))) : [];
    const pairs = ordered.map((value, at) => [value, target.values[at]]).filter(([one, other]) => one !== null && other !== null);
    return { name, runs: pairs.length, rho: pairs.length >= FEWEST ? correlation(ranks(pairs.map(([one]) => one)), ranks(pairs.map(([, other]) => other))) : null };
  });
  found.sort((one, other) => Math.abs(other.rho ?? 0) - Math.abs(one.rho ?? 0));
  for (const { name, runs, rho } of found) {
    const row = line([name, rho === null ? "–" : rho.toFixed(2).replace("-", "−"), rho === null ? "" : String(runs)], "td");
    const bar = make("meter");
    Object.assign(bar, { min: 0, max: 1, value: Math.abs(rho ?? 0), ariaLabel: `strength for ${name}` });
    if (rho !== null) row.cells[1].prepend(bar, " ");
    table.tBodies[0].append(row);
  }
  return [table, make("p", "muted", "1 or −1: the metric rises or falls with the parameter in all runs; 0: it does neither. Parameters act together, so this is a hint, no proof.")];
}

function ranks(values) {
  const sorted = [...values].sort((one, other) => one - other);
  return values.map((value) => (sorted.indexOf(value) + sorted.lastIndexOf(value)) / 2);
}

function correlation(xs, ys) {
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [middle, centre] = [mean(xs), mean(ys)];
  const sums = xs.reduce(([xy, xx, yy], x, at) => [xy + (x - middle) * (ys[at] - centre), xx + (x - middle) ** 2, yy + (ys[at] - centre) ** 2], [0, 0, 0]);
  return sums[1] && sums[2] ? sums[0] / Math.sqrt(sums[1] * sums[2]) : null;
}
