// One chart: series over a shared axis, a cursor for pointer, finger and keys, and what can be downloaded of it.

import { drawLabels } from "./labels.js";
import { columns, dollars, hasSteps, lonePoints, smooth, shownName, timeTicks, unitOf, xText, xTick } from "./series.js";
import { followFingers } from "./touch.js";

const KEYS = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
const COLOURS = 8;
const AXIS_FONT = "11px system-ui, sans-serif";
const AXES = { step: "step", relative: "running time", time: "time", cost: "cost" };
const ZOOM = 0.25;
const LEAST_DRAG = 6;
const NEAR = 30; // of the cursor and the curve that it lights, px
const TIP_LINE = 18; // height, px
const VEIL = 0.7;
const GRID = 1000;
const FLAT = 1e-9; // difference of equal values, of which some are means
const GOLDEN_ANGLE = 137.508;
const computed = new Map(); // colours of the theme
let library = null;

export class Chart {
  plot = null;
  #seen = false;
  #stale = true;
  #keyed = false;
  #frame = null;
  #extent = null; // first and last x of everything, once it was shown

  constructor({ title, source }, onZoom, onLight, onPin) {
    this.source = source;
    this.onZoom = onZoom;
    this.onLight = onLight;
    this.element = make("figure", "chart");
    const caption = make("figcaption");
    this.name = make("span", "chart-name", title);
    this.name.title = title;
    this.value = make("span", "chart-value");
    this.box = make("div", "chart-plot");
    this.box.tabIndex = 0;
    this.box.setAttribute("role", "img");
    this.legend = make("ul", "chart-legend");
    this.tip = make("div", "chart-tip");
    this.tip.setAttribute("aria-hidden", "true");
    const tools = make("span", "chart-tools");
    this.pin = onPin && button("Pin", `Pin ${title}`, () => onPin(title));
    if (this.pin) tools.append(this.pin);
    tools.append(button("PNG", `Save ${title} as PNG`, () => this.#savePng()), button("CSV", `Save ${title} as CSV`, () => this.#saveCsv()));
    caption.append(this.name, tools, this.value);
    this.element.append(caption, this.box, this.legend);
    this.box.addEventListener("keydown", (event) => this.#key(event));
    this.box.addEventListener("blur", () => this.#leave());
    followFingers(this.box, this);
    new ResizeObserver(() => this.plot?.setSize(this.#size())).observe(this.box);
    // A chart that nobody sees is not drawn: a job may have hundreds.
    new IntersectionObserver(([{ isIntersecting }]) => {
      this.#seen = isIntersecting;
      if (isIntersecting && this.#stale) this.#draw();
    }, { rootMargin: "200px" }).observe(this.box);
    addEventListener("beforeprint", () => { if (this.#stale && this.box.isConnected) this.#draw(); });
    this.element.chart = this;
  }

  update(series, options) {
    this.series = series;
    this.options = options;
    this.unit = options.unit === "cost" ? dollars : unitOf(series[0].name);
    // Without steps, and for the system's figures, the axis is the running time.
    const axis = options.x === "step" && !series.every(hasSteps) ? "relative" : options.x;
    if (axis !== this.axis) this.#extent = null;
    this.axis = axis;
    this.ofRuns = series[0].run !== undefined;
    this.whole = this.ofRuns || options.whole; // all points are here
    const read = this.ofRuns ? `curves of ${series.length} runs` : series.map((one) => `${this.#label(one)}${one.text ?? `last ${this.unit(one.last)}, lowest ${this.unit(one.min)}, highest ${this.unit(one.max)}`}`).join("; ");
    this.box.setAttribute("aria-label", `${this.name.textContent}: ${read}. Arrow keys read the points, plus and minus zoom.`);
    this.legend.replaceChildren(...(this.ofRuns ? [] : series.filter((one) => !["line", "interval"].includes(one.kind) || !series.some(({ kind, colour }) => kind === "marks" && colour === one.colour)).map((one, at) => this.#row(one, at))));
    if (!this.#shown()) this.#showLast();
    this.#stale = true;
    if (this.#seen) this.#draw();
  }

  restyle() {
    this.plot?.redraw();
  }

  markPinned(pinned) {
    this.pin?.setAttribute("aria-pressed", String(pinned));
  }

  #showLast() {
    this.value.textContent = this.series.length === 1 && !this.ofRuns ? this.unit(this.series[0].last) : "";
  }

  #label(one) {
    if (this.ofRuns) return `${one.label} `;
    return this.series.length > 1 ? `${shownName(one.name, one.source)} ` : "";
  }

  #row(one, at) {
    const row = make("li");
    const swatch = make("span", `swatch colour-${one.colour ?? at % COLOURS}`);
    swatch.setAttribute("aria-hidden", "true");
    if (one.kind === "steps") swatch.className = `swatch front${one.filled ? "" : " dotted"}`;
    row.append(swatch);
    if (one.text !== undefined) {
      row.append(make("b", "", one.name), one.text);
      return row;
    }
    if (this.series.length > 1) row.append(make("b", "", shownName(one.name, one.source)));
    const last = this.series.length > 1 ? [["last", one.last]] : []; // of a single one it is in the caption
    for (const [word, value] of [...last, ["min", one.min], ["max", one.max]]) row.append(make("span", "", `${word} ${this.unit(value)}`));
    return row;
  }

  #colour(one, at) {
    if (this.ofRuns) return runColour(one.run);
    if (one.kind === "steps") return "var(--text)";
    return `var(--series-${this.source === "system" ? "system" : one.colour ?? at % COLOURS})`;
  }

  #size() {
    return { width: Math.max(80, this.box.clientWidth), height: this.box.clientHeight };
  }

  #draw() {
    if (!window.uPlot) return loadLibrary(() => this.#stale && this.#draw());
    this.#stale = false;
    const tables = this.series.map((one) => {
      const [xs, values] = columns(one, this.axis, one.began ?? this.options.began);
      const ys = values.map((value) => (typeof value === "number" ? value : null));
      const smoothed = this.options.smoothing > 0 ? [smooth(ys, this.options.smoothing)] : [];
      if (!this.ofRuns) return [xs, ys, ...smoothed];
      const band = one.low ? [one.low, one.high] : [];
      return [xs, smoothed[0] ?? ys, ...band.map((edge) => (smoothed.length ? smooth(edge, this.options.smoothing) : edge))];
    });
    // The times of runs differ all: on a grid, a table of many runs stays small.
    if (this.ofRuns && this.axis !== "step") snap(tables);
    const data = window.uPlot.join(tables);
    if (this.ofRuns) this.ends = this.series.map((_, place) => lastKnown(data[1 + place * this.#width()], data[0].length - 1));
    if (!this.zoomed || this.whole) this.#extent = [data[0][0], data[0].at(-1)];
    const shape = JSON.stringify([this.options.log && this.series.every((one) => one.min > 0), this.axis, this.options.smoothing > 0, this.series.map((one) => [one.run ?? one.name, one.low !== undefined, one.kind, one.colour, one.filled])]);
    if (this.plot && shape === this.shape) this.plot.setData(data);
    else {
      this.shape = shape;
      this.plot?.destroy();
      this.plot = new window.uPlot(this.#config(), data, this.box);
    }
    if (this.whole && this.zoomed) this.plot.setScale("x", { min: this.options.range.from, max: this.options.range.to });
  }

  #config() {
    const log = this.options.log && this.series.every((one) => one.min > 0);
    const smoothed = this.options.smoothing > 0 && !this.ofRuns;
    const series = this.series.flatMap((one, at) => {
      const stroke = () => colour(this.box, this.#colour(one, at));
      const line = { stroke, width: 1.6, points: { show: false, size: 5, filter: (plot, index) => lonePoints(plot.data[index]) } };
      if (one.kind === "marks") return [{ stroke, paths: () => null, points: { show: true, size: 10, width: 2, fill: one.filled ? stroke : () => colour(this.box, "var(--sheet)") } }];
      if (one.kind === "steps") return [{ stroke, width: 1.4, dash: one.filled ? [6, 4] : [2, 3], paths: window.uPlot.paths.stepped({ align: 1, extend: true }), points: { show: false } }];
      const edge = { ...line, width: 0 };
      return one.low ? [line, edge, edge] : smoothed ? [{ ...line, width: 1, alpha: 0.3 }, line] : [line];
    });
    // The spread of a group: between its upper and its lower edge.
    const bands = this.series.flatMap((one, at) => (one.low ? [{ series: [3 * at + 3, 3 * at + 2], fill: () => faded(colour(this.box, runColour(one.run))) }] : []));
    const muted = () => colour(this.box, "var(--muted)");
    const axis = { stroke: muted, font: AXIS_FONT, grid: { stroke: () => colour(this.box, "var(--line-soft)"), width: 1 }, ticks: { show: false } };
    return {
      ...this.#size(),
      padding: [8, this.axis === "time" ? 40 : 30, 0, 0],
      legend: { show: false },
      series: [{}, ...series],
      bands,
      scales: { x: { time: this.axis === "time", range: (plot, low, high) => this.#range(low, plot.data[0].length === 1 ? low : high) }, y: { distr: log ? 3 : 1, range: log ? undefined : flatRange } },
      axes: [
        { ...axis, ...(AXES[this.axis] && this.source === "job" ? { label: AXES[this.axis], labelFont: AXIS_FONT, labelSize: 14, labelGap: 0 } : {}), size: this.axis === "time" ? 40 : 24, gap: 2, space: 80, values: (_, ticks, _axis, _space, step) => (this.axis === "time" ? timeTicks(ticks, step) : ticks.map(xTick(this.axis))) },
        { ...axis, gap: 4, size: (_, labels) => 10 + 6.4 * Math.max(4, ...(labels ?? []).map((label) => label.length)), values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : this.unit(tick, 5))) },
      ],
      cursor: {
        y: false,
        sync: { key: this.axis, scales: ["x", null], filters: { pub: (type) => type === "mousemove" || type === "mouseleave" } },
        drag: { x: true, y: false, setScale: false },
        bind: { dblclick: () => () => { this.onZoom(null); return null; } },
        points: { size: 6, show: !this.whole },
        ...(this.whole ? {} : { dataIdx: (plot, series, at) => (series === 0 ? at : Math.max(0, lastKnown(plot.data[series], at))) }),
      },
      hooks: { setCursor: [() => this.#point()], setSelect: [() => this.#select()], draw: [() => this.#drawLit(), () => this.#drawLabels()] },
    };
  }

  // With marks, from zero, and with room for those at the edges.
  #range(low, high) {
    if (this.options.whole && !this.zoomed) return flatRange(null, Math.min(0, low), high);
    if (low === high) return [this.axis === "relative" ? Math.max(0, low - 1) : low - 1, high + 1];
    return [low, high];
  }

  #shown() {
    return this.plot !== null && this.plot.cursor.idx !== null && this.plot.cursor.left >= 0;
  }

  // Lights the run nearest to the mouse, and reads the values once for a frame of the screen.
  #point() {
    if (this.ofRuns && this.#shown() && this.plot.over.matches(":hover")) this.onLight(this.#nearest());
    this.#readSoon();
  }

  #readSoon() {
    this.#frame ??= requestAnimationFrame(() => {
      this.#frame = null;
      this.#read();
    });
  }

  #read() {
    if (!this.plot) return;
    const { idx } = this.plot.cursor;
    if (!this.#shown()) {
      this.tip.remove();
      this.#showLast();
      return;
    }
    const at = xText(this.axis, this.plot.data[0][idx]);
    if (this.ofRuns) return this.#readRuns(at, idx);
    const width = this.#width();
    const read = this.series.filter((one, place) => one.kind !== "steps" && (!["marks", "interval"].includes(one.kind) || this.plot.data[1 + place][idx] !== undefined));
    const values = read.map((one) => {
      const column = this.plot.data[1 + this.series.indexOf(one) * width];
      return `${this.#label(one)}${this.unit(column[lastKnown(column, idx)])}`;
    });
    this.value.textContent = `${at}: ${values.join(", ")}`;
    this.#showTip(at, values.map((text) => ({ text })));
  }

  // The runs that have a value there, the highest first, around the nearest one.
  #readRuns(at, idx) {
    const width = this.#width();
    const found = [];
    this.series.forEach((one, place) => {
      const column = this.plot.data[1 + place * width];
      const value = idx <= this.ends[place] ? column[lastKnown(column, idx)] : null;
      if (typeof value === "number") found.push([one, value]);
    });
    found.sort((one, other) => other[1] - one[1]);
    const middle = found.findIndex(([one]) => one.run === this.lit);
    const fit = Math.max(1, Math.floor(this.plot.bbox.height / devicePixelRatio / TIP_LINE) - 2); // beside the step and the rest
    const first = Math.max(0, Math.min(middle - Math.floor(fit / 2), found.length - fit));
    const lines = found.slice(first, first + fit).map(([one, value]) => ({ text: `${this.unit(value)} `, name: one.label, swatch: runColour(one.run), style: one.run === this.lit ? "nearest" : "" }));
    if (found.length > lines.length) lines.push({ text: `and ${found.length - lines.length} more`, style: "muted" });
    const lit = found[middle];
    this.value.textContent = lit ? `${at}: ${this.#label(lit[0])}${this.unit(lit[1])}` : at;
    this.#showTip(at, lines);
  }

  // Columns of the plot's data for each series.
  #width() {
    if (this.ofRuns) return this.series[0].low ? 3 : 1;
    return this.options.smoothing > 0 ? 2 : 1;
  }

  // Veils all curves but that of a run, which is drawn above them: to draw hundreds again would take too long.
  light(run) {
    if (this.lit === run) return;
    this.lit = run;
    if (this.plot) this.#drawLit();
    this.#readSoon();
  }

  #drawLit() {
    const at = this.series.findIndex((one) => one.run === this.lit);
    this.above ??= make("canvas", "chart-lit");
    this.above.hidden = !this.ofRuns || !this.plot || at < 0;
    if (this.above.hidden) return;
    const { over, data } = this.plot;
    const { width, height } = this.plot.bbox; // in pixels of the screen, and known without a layout
    if (this.above.width !== width || this.above.height !== height) Object.assign(this.above, { width, height });
    if (this.above.parentElement !== over) over.prepend(this.above);
    const pen = this.above.getContext("2d");
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    pen.clearRect(0, 0, width, height);
    Object.assign(pen, { globalAlpha: VEIL, fillStyle: colour(this.box, "var(--sheet)") });
    pen.fillRect(0, 0, width, height);
    pen.globalAlpha = 1;
    Object.assign(pen, { strokeStyle: colour(this.box, runColour(this.series[at].run)), lineWidth: 2.2, lineJoin: "round" });
    pen.beginPath();
    data[this.#width() * at + 1].forEach((value, place) => {
      if (value !== null && value !== undefined) pen.lineTo(this.plot.valToPos(data[0][place], "x"), this.plot.valToPos(value, "y"));
    });
    pen.stroke();
  }

  #drawLabels() {
    const marks = this.ofRuns ? [] : this.series.filter((one) => one.label);
    this.labels = drawLabels(this.plot, marks, colour(this.box, "var(--text)"));
  }

  // The run whose curve is nearest to the mouse.
  #nearest() {
    const { idx, top } = this.plot.cursor;
    let [found, least] = [null, NEAR];
    this.series.forEach(({ run }, at) => {
      const column = this.plot.data[this.#width() * at + 1];
      const far = Math.abs(this.plot.valToPos(column[lastKnown(column, idx)], "y") - top);
      if (far < least) [found, least] = [run, far];
    });
    return found;
  }

  // The values in a box beside the cursor, on the side that has room. Its nodes stay: new ones take longer to lay out.
  #showTip(at, lines) {
    const { left } = this.plot.cursor;
    const clientWidth = this.plot.bbox.width / devicePixelRatio;
    [{ text: at }, ...lines].forEach((line, place) => write(this.tip.children[place] ?? this.tip.appendChild(tipLine()), line));
    while (this.tip.children.length > lines.length + 1) this.tip.lastChild.remove();
    if (this.tip.parentElement !== this.plot.over) this.plot.over.append(this.tip);
    const beyond = left > clientWidth / 2;
    this.tip.style.left = beyond ? "" : `${left + 12}px`;
    this.tip.style.right = beyond ? `${clientWidth - left + 12}px` : "";
  }

  #select() {
    const { left, width } = this.plot.select;
    if (width < LEAST_DRAG) return;
    const range = [this.plot.posToVal(left, "x"), this.plot.posToVal(left + width, "x")];
    this.plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    this.#zoom(...range);
  }

  // Loads a range of what there is; all of it if the range includes it.
  choose(from, to) {
    const [first, last] = this.#extent ?? [-Infinity, Infinity];
    const width = to - from;
    const start = Math.max(first, Math.min(from, last - width));
    if (width >= last - first) this.onZoom(null);
    else this.#zoom(start, start + width);
  }

  #zoom(from, to) {
    const shift = this.axis === "relative" ? this.options.began : 0;
    this.onZoom({ axis: this.axis === "step" ? "step" : "time", from: from + shift, to: to + shift });
  }

  get zoomed() {
    return this.options.range !== null;
  }

  // Shows the values under a finger.
  point(event) {
    const box = this.plot.over.getBoundingClientRect();
    this.plot.setCursor({ left: Math.min(Math.max(event.clientX - box.left, 0), box.width - 1), top: event.clientY - box.top }, true, true);
  }

  #key(event) {
    if (!this.plot || event.ctrlKey || event.altKey || event.metaKey) return;
    const [xs] = this.plot.data;
    const last = xs.length - 1;
    const at = this.#shown() ? this.plot.cursor.idx : null;
    if (event.key in KEYS) this.#moveTo(Math.min(Math.max((at ?? last) + KEYS[event.key], 0), last));
    else if (event.key === "+" && last > 0) {
      const [centre, half] = [xs[at ?? last], (xs[last] - xs[0]) * ZOOM];
      this.#zoom(Math.max(xs[0], centre - half), Math.min(xs[last], centre + half));
    } else if (event.key === "-" || event.key === "Escape") this.onZoom(null);
    else return;
    event.preventDefault();
  }

  #moveTo(at) {
    this.value.setAttribute("aria-live", "polite");
    this.#keyed = true;
    this.plot.setCursor({ left: this.plot.valToPos(this.plot.data[0][at], "x"), top: 1 }, true, true);
  }

  #leave() {
    this.value.removeAttribute("aria-live");
    if (this.#keyed) this.plot?.setCursor({ left: -10, top: -10 }, true, true);
    this.#keyed = false;
  }

  #savePng() {
    this.#seen = true;
    if (!this.plot || this.#stale) this.#draw();
    const from = this.plot.ctx.canvas;
    const scale = from.width / this.box.clientWidth;
    const picture = Object.assign(document.createElement("canvas"), { width: from.width, height: from.height + 24 * scale });
    const pen = picture.getContext("2d");
    pen.fillStyle = colour(this.box, "var(--sheet)");
    pen.fillRect(0, 0, picture.width, picture.height);
    pen.fillStyle = colour(this.box, "var(--text)");
    pen.font = `${13 * scale}px system-ui, sans-serif`;
    pen.fillText(this.name.textContent, 8 * scale, 17 * scale);
    pen.drawImage(from, 0, 24 * scale);
    picture.toBlob((blob) => save(blob, `${this.name.textContent}.png`));
  }

  #saveCsv() {
    const tables = this.series.map((one) => columns(one, this.axis, this.options.began));
    const data = window.uPlot.join(tables);
    const rows = [[this.axis, ...this.series.map((one) => one.name)].map(cell).join(",")];
    data[0].forEach((x, at) => rows.push([x, ...data.slice(1).map((ys) => ys[at] ?? "")].join(",")));
    save(new Blob([`${rows.join("\n")}\n`], { type: "text/csv" }), `${this.name.textContent}.csv`);
  }
}

// The index of the last value up to a place; of the first one if none is before it.
function lastKnown(values, at) {
  for (let before = at; before >= 0; before -= 1) if (values[before] !== undefined && values[before] !== null) return before;
  return values.findIndex((value) => value !== undefined && value !== null);
}

function snap(tables) {
  const ends = tables.flatMap(([xs]) => [xs[0], xs.at(-1)]).filter(Number.isFinite);
  const [low, high] = [Math.min(...ends), Math.max(...ends)];
  const step = (high - low) / GRID || 1;
  for (const table of tables) table[0] = table[0].map((x) => low + Math.round((x - low) / step) * step);
}

// Calls back once uPlot is there, a classic script that only pages with charts load.
export function loadLibrary(use) {
  library ??= new Promise((resolve) => {
    const script = make("script");
    script.src = new URL("../vendor/uplot-1.6.32.js", import.meta.url);
    script.addEventListener("load", resolve);
    document.head.append(script);
  });
  library.then(use);
}

export function followTheme(restyle) {
  const forget = () => {
    computed.clear();
    restyle();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
  new MutationObserver(forget).observe(document.documentElement, { attributeFilter: ["data-theme"] });
}

// One value all along: a line in the middle.
function flatRange(_, low, high) {
  if (low === null) return [0, 1];
  if (high - low <= Math.abs(high) * FLAT) return [low - (Math.abs(low) || 1) / 2, high + (Math.abs(high) || 1) / 2];
  return [low - (high - low) * 0.05, high + (high - low) * 0.05];
}

// Spreadsheets take a text that begins like this for a formula.
export function cell(text) {
  return `"${(/^[=+\-@\t\r]/.test(text) && isNaN(text) ? "'" : "") + text.replaceAll('"', '""')}"`;
}

export function save(blob, name) {
  const link = make("a");
  link.href = URL.createObjectURL(blob);
  link.download = name.replace(/[^\w.-]+/g, "-");
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// The colour of a run in all charts: of any number of runs, neighbours differ much.
export function runColour(run) {
  return run < COLOURS ? `var(--series-${run})` : `hsl(${(run * GOLDEN_ANGLE) % 360} 60% 50%)`;
}

// A canvas knows no variables, and no colours that depend on the theme: the browser computes them.
function colour(element, value) {
  if (!value.startsWith("var(")) return value;
  if (!computed.has(value)) {
    element.style.color = value;
    computed.set(value, getComputedStyle(element).color);
    element.style.color = "";
  }
  return computed.get(value);
}

function faded(rgb) {
  return rgb.replace(")", rgb.includes(",") ? ", 0.15)" : " / 0.15)");
}

function tipLine() {
  const line = make("div");
  line.append(make("span", "swatch"), "", make("span", "tip-name"));
  line.lastChild.append("");
  return line;
}

function write(line, { text, name = "", swatch = "", style = "" }) {
  const [square, value, { firstChild: label }] = line.childNodes;
  if (line.swatch !== swatch) {
    line.swatch = swatch;
    square.hidden = !swatch;
    square.style.background = swatch;
  }
  if (value.data !== text) value.data = text;
  if (label.data !== name) label.data = name;
  if (line.className !== style) line.className = style;
}

function button(text, label, action) {
  const element = make("button", "quiet", text);
  element.type = "button";
  element.setAttribute("aria-label", label);
  element.addEventListener("click", action);
  return element;
}

export function make(tag, name, text) {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined) element.textContent = text;
  return element;
}
