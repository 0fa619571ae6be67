// A job's metrics as small line charts.

import { isLive } from "./live.js";

const EVERY_MS = 4000;
const COST_SHARE = 10;
const POINTS = 400;
const WIDTH = 320;
const HEIGHT = 96;
const PAD = 4;
const SVG = "http://www.w3.org/2000/svg";

export function drawMetrics(section) {
  const address = `/jobs/${encodeURIComponent(section.dataset.metrics)}/metrics?maxPoints=${POINTS}`;
  const charts = new Map();
  let wasLive = true;
  let tag = "";

  async function look() {
    const live = isLive();
    const began = performance.now();
    let pause = EVERY_MS;
    // Once more after the end, for the last values.
    if (!document.hidden && (live || wasLive)) {
      try {
        const answer = await fetch(address, { headers: tag ? { "If-None-Match": tag } : {} });
        if (answer.ok) {
          show(section, charts, await answer.json());
          tag = answer.headers.get("ETag") ?? "";
        }
        if (answer.status === 429) pause = 1000 * Number(answer.headers.get("Retry-After") ?? 0);
        else wasLive = live;
      } catch {
        // The next request may succeed; the charts stay as they are until then.
      }
    }
    // A slow server is polled less often.
    pause = Math.max(pause, EVERY_MS, COST_SHARE * (performance.now() - began));
    if (live || wasLive) setTimeout(look, pause);
  }

  look();
}

function show(section, charts, { series, leftOut }) {
  const note = section.querySelector("[data-left-out]");
  note.textContent = leftOut ?? "";
  note.hidden = !leftOut;
  for (const one of series) {
    const key = `${one.source} ${one.name}`;
    if (!charts.has(key)) {
      charts.set(key, new Chart(one));
      const box = section.querySelector(`[data-charts="${one.source}"]`);
      box.append(charts.get(key).element);
      box.hidden = false;
    }
    charts.get(key).update(one);
  }
  section.hidden = series.length === 0 && !leftOut;
}

class Chart {
  constructor(series) {
    this.element = make("figure", "chart");
    const caption = make("figcaption");
    const name = make("span", "chart-name", series.name);
    name.title = series.name;
    this.figure = series.name.endsWith("_bytes") ? bytes : figure;
    this.value = make("span", "chart-value");
    caption.append(name, this.value);
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.line = this.#shape("path", "chart-line");
    this.cursor = this.#shape("line", "chart-cursor");
    this.range = make("div", "chart-range");
    this.element.append(caption, this.svg, this.range);
    this.svg.addEventListener("pointermove", (event) => this.#point(event));
    this.svg.addEventListener("pointerleave", () => this.#leave());
  }

  update(series) {
    this.series = series;
    this.points = place(series);
    this.line.setAttribute("d", path(this.points));
    this.line.classList.toggle("lone", this.points.length === 1);
    this.svg.setAttribute("aria-label", `${series.name}: last ${this.figure(series.last)}, lowest ${this.figure(series.min)}, highest ${this.figure(series.max)}`);
    this.range.textContent = `min ${this.figure(series.min)} · max ${this.figure(series.max)}`;
    if (!this.pointed) this.value.textContent = this.figure(series.last);
  }

  #shape(tag, name) {
    const shape = document.createElementNS(SVG, tag);
    shape.setAttribute("class", name);
    this.svg.append(shape);
    return shape;
  }

  #point(event) {
    const box = this.svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) / box.width) * WIDTH;
    const near = this.points.reduce((best, one) => (!best || Math.abs(one.x - x) < Math.abs(best.x - x) ? one : best), null);
    if (!near) return;
    this.pointed = true;
    for (const [name, value] of [["x1", near.x], ["x2", near.x], ["y1", 0], ["y2", HEIGHT]]) this.cursor.setAttribute(name, value);
    this.cursor.classList.add("shown");
    this.value.textContent = `${near.at}: ${this.figure(near.value)}`;
  }

  #leave() {
    this.pointed = false;
    this.cursor.classList.remove("shown");
    this.value.textContent = this.figure(this.series.last);
  }
}

function place(series) {
  const bySteps = series.points.length > 0 && series.points.every((point) => point.step !== null);
  const began = series.points.length ? Date.parse(series.points[0].time) : 0;
  const xs = series.points.map((point) => (bySteps ? point.step : (Date.parse(point.time) - began) / 1000));
  const [left, right] = [Math.min(...xs), Math.max(...xs)];
  const spread = series.max - series.min;
  return series.points.map((point, index) => ({
    x: right > left ? PAD + ((xs[index] - left) / (right - left)) * (WIDTH - 2 * PAD) : WIDTH / 2,
    y: point.value === null ? null : spread > 0 ? HEIGHT - PAD - ((point.value - series.min) / spread) * (HEIGHT - 2 * PAD) : HEIGHT / 2,
    value: point.value,
    at: bySteps ? `step ${figure(xs[index])}` : `${figure(xs[index])} s`,
  }));
}

// A value that was not finite leaves a gap; a lone point is drawn as a dot.
function path(points) {
  let drawn = "";
  points.forEach((point, index) => {
    if (point.y === null) return;
    const alone = points[index - 1]?.y == null && points[index + 1]?.y == null;
    const to = `${point.x.toFixed(1)} ${point.y.toFixed(1)}`;
    drawn += points[index - 1]?.y == null ? `M${to}` : `L${to}`;
    if (alone) drawn += "h0.01";
  });
  return drawn;
}

function figure(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-3)) return value.toExponential(2);
  return String(Number(value.toPrecision(5)));
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const power = Math.min(4, Math.floor(Math.log10(Math.max(1, value)) / 3));
  return `${figure(Number((value / 1000 ** power).toPrecision(3)))} ${["B", "kB", "MB", "GB", "TB"][power]}`;
}

function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}
