// Pure functions of a chart's data: coordinates, smoothing, units, and the charts that series share.

import { showReordering } from "../log/ansi.js";
import { clock, day, exactTime } from "../times.js";

const SPLIT = /^(train|training|val|valid|validation|eval|test)[/_](.+)$/;
const NUMBERS = new Intl.NumberFormat("en", { maximumFractionDigits: 20 });
const SI = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

// One chart for all splits of a metric (`train/loss` and `val/loss`, or `loss` and `val_loss`); else one for each.
export function groupSeries(series) {
  const names = new Set(series.map((one) => one.name));
  const charts = new Map();
  for (const one of series) {
    const [, , rest] = one.source === "job" ? one.name.match(SPLIT) ?? [] : [];
    const shared = one.run === undefined && rest !== undefined && (names.has(rest) || [...names].some((name) => name !== one.name && name.match(SPLIT)?.[2] === rest));
    const title = shared ? rest : one.name;
    const key = `${one.source} ${title}`;
    if (!charts.has(key)) charts.set(key, { key, title: shownName(title, one.source), source: one.source, group: groupOf(title), series: [] });
    charts.get(key).series.push(one);
  }
  return charts;
}

function groupOf(name) {
  const at = name.indexOf("/");
  return at > 0 ? showReordering(name.slice(0, at)) : "";
}

// The service's own metrics in words; those of a job have the names that it gave them.
export function shownName(name, source) {
  if (source !== "system") return showReordering(name);
  return name.replace(/_(bytes|percent)$/, "").replaceAll("_", " ").replace(/\b(cpu|gpu|tpu)\b/g, (word) => word.toUpperCase());
}

export function hasSteps(series) {
  if (series.x) return true;
  return series.points.length > 0 && series.points.every((point) => point.step !== null);
}

// Number of points of a metric; those of compared runs come as columns.
export function pointsOf(series) {
  return (series.x ?? series.points).length;
}

// [x, y] columns in order of x. Of two points at one step, such as of two attempts, the later one stays. Values that
// JSON lacks, such as NaN, are strings.
export function columns(series, axis, began) {
  if (series.x) return [series.x, series.y];
  const byX = new Map();
  for (const { step, time, value } of series.points) {
    const at = Date.parse(time) / 1000;
    byX.set(axis === "step" ? step : axis === "relative" ? at - began : at, value);
  }
  const sorted = [...byX].sort((one, other) => one[0] - other[0]);
  return [sorted.map(([x]) => x), sorted.map(([, y]) => y)];
}

// An exponential moving average, without a pull to zero at its beginning.
export function smooth(values, weight) {
  let [sum, total] = [0, 0];
  return values.map((value) => {
    if (value === null) return null;
    [sum, total] = [sum * weight + value, total * weight + 1];
    return sum / total;
  });
}

// Indexes of values without a neighbour, which no line would show.
export function lonePoints(values) {
  const known = values.map((value, at) => [value, at]).filter(([value]) => value !== undefined);
  return known.filter(([value], at) => value !== null && (known[at - 1]?.[0] ?? null) === null && (known[at + 1]?.[0] ?? null) === null).map(([, at]) => at);
}

export function unitOf(name) {
  return name.endsWith("_bytes") ? (name.includes("memory") ? memory : bytes) : name.endsWith("_percent") ? percent : figure;
}

// As `format_number` of rendering.py: whole numbers with all digits, others with three; the marks of an axis have more.
export function figure(value, digits = 3) {
  if (typeof value !== "number") return value ?? "–";
  const size = Math.abs(value);
  const rounded = size >= 10 ** digits ? Math.round(value) : Number(value.toPrecision(digits));
  if (size && (size < 1e-4 || size >= 1e15)) return rounded.toExponential().replace(/e-(\d)$/, "e-0$1");
  return NUMBERS.format(rounded);
}

function percent(value, digits) {
  return typeof value !== "number" ? value ?? "–" : `${figure(value, digits)} %`;
}

function bytes(value, digits) {
  if (typeof value !== "number") return value ?? "–";
  const power = Math.min(4, Math.max(0, Math.floor(Math.log10(Math.max(1, Math.abs(value))) / 3)));
  const amount = value / 1000 ** power;
  return `${digits || !power ? figure(amount, digits) : amount.toFixed(1)} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

// As `format_memory`.
function memory(value, digits) {
  if (typeof value !== "number") return value ?? "–";
  const [amount, unit] = Math.abs(value) >= 2 ** 30 ? [value / 2 ** 30, "GiB"] : [value / 2 ** 20, "MiB"];
  return `${digits ? figure(amount, digits) : amount.toLocaleString("en", { maximumFractionDigits: 1 })} ${unit}`;
}

// Dollars: cents, and below one dollar the digits that count, as short jobs cost fractions of a cent.
export function dollars(value) {
  if (typeof value !== "number") return value ?? "–";
  return Math.abs(value) >= 1 ? `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}` : `$${Number(value.toPrecision(3))}`;
}

export function shortNumber(value) {
  const [size, unit] = SI.find(([least]) => Math.abs(value) >= least) ?? [1, ""];
  return `${Number((value / size).toPrecision(6))}${unit}`;
}

export function duration(seconds) {
  const whole = Math.abs(seconds);
  if (whole < 60) return `${Number(seconds.toPrecision(3))} s`;
  if (whole < 3600) return `${Math.trunc(seconds / 60)}:${pad(whole % 60)}`;
  return `${Math.trunc(seconds / 3600)}:${pad((whole / 60) % 60)}:${pad(whole % 60)}`;
}

function pad(number) {
  return String(Math.floor(number)).padStart(2, "0");
}

// As `format_duration` of formatting.py.
function spell(seconds) {
  if (seconds < 3600) return `${Math.trunc(seconds / 60)} min ${pad(seconds % 60)} s`;
  return seconds < 86_400 ? `${Math.trunc(seconds / 3600)} h ${pad((seconds / 60) % 60)} min` : `${Math.trunc(seconds / 86_400)} d ${Math.trunc(seconds / 3600) % 24} h`;
}

// Labels of a time axis: the day below the first tick, and below each of another day.
export function timeTicks(ticks, step) {
  return ticks.map((tick, at) => {
    const date = new Date(tick * 1000);
    const fraction = step < 1 ? `.${String(date.getMilliseconds()).padStart(3, "0").slice(0, step < 0.01 ? 3 : step < 0.1 ? 2 : 1)}` : "";
    const text = step < 60 ? clock(date) + fraction : clock(date).slice(0, 5);
    return at && day(date) === day(new Date(ticks[at - 1] * 1000)) ? text : `${step < 86400 ? text : ""}\n${day(date)}`;
  });
}

// How the marks of an axis are written; those of time depend on their neighbours.
export function xTick(axis) {
  return { cost: dollars, relative: duration }[axis] ?? shortNumber;
}

export function xText(axis, value) {
  if (axis === "relative" && value >= 60) return spell(value);
  if (axis === "step") return `step ${figure(value)}`;
  return axis === "time" ? exactTime(new Date(value * 1000)) : xTick(axis)(value);
}
