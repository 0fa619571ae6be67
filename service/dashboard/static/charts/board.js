// All charts of a job: fetches the series, and keeps the options and the range in the page's address.

import { isLive, onChange } from "../live.js";
import { Chart, followTheme, loadLibrary, make } from "./chart.js";
import { meanSeries } from "./groups.js";
import { joinTable, singleTable } from "./runs.js";
import { groupSeries, pointsOf, unitOf } from "./series.js";

const EVERY_MS = 4000;
const COST_SHARE = 10;
const FEW_RUNS = 6; // of which single values have columns
const MORE = 4; // curves are drawn again once there are so many times as many
const SAMPLED = "Long runs are shown at even intervals. Zoom in for more values.";

export function showMetrics(section) {
  new Board(section).start();
}

const curves = new Map(); // charts by their titles

// Charts whose points are all on the page, as those of comparisons and sweeps.
export function showCurves() {
  const show = (part) => {
    const boxes = part.querySelectorAll("[data-curves]");
    if (boxes.length) loadLibrary(() => boxes.forEach(draw));
  };
  show(document);
  onChange(show);
  followTheme(() => curves.forEach((chart) => chart.restyle()));
}

function draw(box) {
  for (const { title, axis, unit, series } of JSON.parse(box.dataset.curves)) {
    const show = (range) => curves.get(title).update(series, { x: axis, unit, log: false, smoothing: 0, began: 0, range, whole: true });
    if (!curves.has(title)) curves.set(title, new Chart({ title, source: "job" }));
    const chart = curves.get(title);
    chart.onZoom = show;
    show(chart.options?.range ?? null);
    box.append(chart.element);
  }
}

class Board {
  #charts = new Map();
  #groups = new Map();
  #answer = { series: [], leftOut: null };
  #tag = "";
  #wasLive = true;

  constructor(section) {
    this.section = section;
    // Of several runs, each curve has its own beginning.
    this.runs = "runs" in section.dataset ? new Map() : null;
    this.began = this.runs ? 0 : Number(section.dataset.began);
    this.listed = new Set();
    this.form = section.querySelector("[data-chart-options]");
    this.query = new URLSearchParams(location.search);
    // Ids of runs whose curves are hidden, and titles of the charts that come first.
    this.hidden = new Set(this.query.get("hide")?.split(","));
    this.pinned = new Set(this.query.getAll("pin"));
  }

  start() {
    if (this.runs) this.table = joinTable(this);
    this.table?.learn();
    this.#readQuery();
    this.x = this.form.elements.x?.value;
    this.table?.dress();
    this.form.addEventListener("input", () => this.#change());
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.querySelector("[data-reset]").addEventListener("click", () => this.#zoom(null));
    followTheme(() => this.#charts.forEach((chart) => chart.restyle()));
    this.#poll();
  }

  #readQuery() {
    const { log, smooth, x, q, group, value } = this.form.elements;
    if (value) value.value = ["min", "max"].find((kind) => kind === this.query.get("value")) ?? "last";
    log.checked = this.query.get("log") === "1";
    if (group) group.value = [...group.options].some((one) => one.value === this.query.get("group")) ? this.query.get("group") : "";
    smooth.value = Number(this.query.get("smooth")) || 0;
    if (x) x.value = ["step", "time", "relative"].find((axis) => axis === this.query.get("x")) ?? "step";
    if (q) q.value = this.query.get(q.dataset.name ?? "q") ?? "";
    const [from, to] = [this.query.get("from"), this.query.get("to")].map((text) => (text ? Number(text) : NaN));
    this.range = Number.isFinite(from) && Number.isFinite(to) && from <= to ? { axis: this.query.get("axis") === "time" ? "time" : "step", from, to } : null;
  }

  #options() {
    const { log, smooth, x } = this.form.elements;
    return { log: log.checked, smoothing: Math.min(Number(smooth.value), 0.99), x: x?.value ?? "step", began: this.began, range: this.range };
  }

  redraw() {
    this.#writeQuery();
    this.#draw();
  }

  // The table has new runs.
  reload() {
    this.#fetch();
  }

  // Of grouped runs, `curve` is the number of a group.
  light(curve) {
    if (this.lit === curve) return;
    this.lit = curve;
    this.table.light(curve);
    for (const chart of this.#charts.values()) chart.light(curve);
  }

  #change() {
    const { x } = this.form.elements;
    const turned = this.runs && this.x !== x.value;
    if (turned) this.range = null;
    this.x = x?.value;
    this.table?.update(this.#answer.series);
    this.#writeQuery();
    if (turned) this.#fetch();
    else this.#draw();
  }

  #writeQuery() {
    const { log, smooth, x, q, group, value } = this.form.elements;
    const state = { ...(group ? { group: group.value, value: value.value === "last" ? "" : value.value, hide: [...this.hidden].join(",") } : {}), log: log.checked ? "1" : "", smooth: Number(smooth.value) || "", x: x && x.value !== "step" ? x.value : "", [q?.dataset.name ?? "q"]: q?.value ?? "", axis: this.range?.axis === "time" ? "time" : "", from: this.range?.from ?? "", to: this.range?.to ?? "" };
    const address = new URL(location.href);
    for (const [name, value] of Object.entries(state)) {
      if (value === "") address.searchParams.delete(name);
      else address.searchParams.set(name, value);
    }
    address.searchParams.delete("pin");
    for (const title of this.pinned) address.searchParams.append("pin", title);
    history.replaceState(history.state, "", address);
  }

  #zoom(range) {
    if (range === null && this.range === null) return;
    this.range = range;
    this.#writeQuery();
    if (this.runs) this.#draw();
    this.#fetch();
  }

  // The curves of all runs in one answer, a line a run, drawn as they come.
  async #fetchRuns() {
    if (!this.listed.size) return new Response();
    const wanted = { ids: [...this.listed].join(","), axis: this.x };
    if (this.range) Object.assign(wanted, { from: this.range.from, to: this.range.to });
    const asked = (this.asked = new URLSearchParams(wanted).toString());
    const answer = await fetch(`${this.section.dataset.metrics}?${asked}`);
    if (!answer.ok) return answer;
    const found = { series: [], leftOut: null };
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      const lines = (rest + next.value).split("\n");
      rest = lines.pop();
      for (const { id, sampled, series } of lines.map((line) => JSON.parse(line))) {
        if (sampled) found.leftOut = SAMPLED;
        for (const one of series) found.series.push({ ...one, ...this.runs.get(id) });
      }
      if (asked !== this.asked) return answer;
      if (found.series.length > MORE * this.#answer.series.length) this.#showRuns(found);
    }
    if (!found.series.length) found.leftOut = "These jobs have no metrics.";
    this.#showRuns(found);
    this.table.update(found.series);
    return answer;
  }

  #showRuns(found) {
    this.#answer = { ...found, series: [...found.series] };
    this.#draw();
  }

  async #fetch() {
    if (this.runs) return this.#fetchRuns();
    const address = new URL(this.section.dataset.metrics, location.href);
    const range = this.range;
    if (range) for (const [name, value] of Object.entries(range)) address.searchParams.set(name, value);
    const answer = await fetch(address, { headers: this.#tag ? { "If-None-Match": this.#tag } : {} });
    if (answer.ok && range === this.range) {
      this.#tag = answer.headers.get("ETag") ?? "";
      this.#answer = await answer.json();
      this.#draw();
    }
    return answer;
  }

  async #poll() {
    const live = isLive();
    const began = performance.now();
    let pause = EVERY_MS;
    // Once more after the end, for the last values.
    if (!document.hidden && (live || this.#wasLive)) {
      try {
        const answer = await this.#fetch();
        if (answer.status === 429) pause = 1000 * Number(answer.headers.get("Retry-After") ?? 0);
        else if (answer.status < 500) this.#wasLive = live;
      } catch (error) {
        // The next request may succeed; the charts stay as they are until then.
        if (!(error instanceof TypeError)) reportError(error);
      }
    }
    // A slow server is polled less often.
    pause = Math.max(pause, EVERY_MS, COST_SHARE * (performance.now() - began));
    if (live || this.#wasLive) setTimeout(() => this.#poll(), pause);
  }

  #draw() {
    const { series, leftOut } = this.#answer;
    const note = this.section.querySelector("[data-left-out]");
    note.textContent = leftOut ?? "";
    note.hidden = !leftOut;
    // The page of a job that had not started when it was opened does not know its start.
    if (!Number.isFinite(this.began)) this.began = Math.min(...series.map((one) => Date.parse(one.points[0]?.time) / 1000).filter(Number.isFinite));
    const filter = (this.form.elements.q?.value ?? "").toLowerCase();
    const seen = this.runs ? series.filter((one) => this.listed.has(one.id) && !this.hidden.has(one.id)) : series;
    const groups = groupSeries(this.table?.groups ? meanSeries(seen, this.table.groups) : seen);
    const singles = this.#takeSingles(groups);
    for (const group of groups.values()) {
      if (!this.#charts.has(group.key)) this.#add(group);
      const chart = this.#charts.get(group.key);
      chart.element.hidden = !group.series.some((one) => one.name.toLowerCase().includes(filter));
      chart.update(group.series, this.#options());
    }
    for (const [key, chart] of this.#charts) if (!groups.has(key)) chart.element.hidden = true;
    this.#showSingles(singles);
    this.#order();
    for (const box of this.#groups.values()) box.hidden = [...box.querySelectorAll(".chart")].every((chart) => chart.hidden);
    const reset = this.form.querySelector("[data-reset]");
    reset.hidden = this.range === null;
    this.form.hidden = series.every((one) => pointsOf(one) < 2) && this.range === null;
    const empty = document.querySelector("[data-no-metrics]");
    if (empty && series.length) empty.remove();
    this.section.hidden = !this.runs && series.length === 0 && !leftOut && this.range === null;
  }

  // A metric with one value is no curve.
  #takeSingles(groups) {
    const single = this.range ? [] : [...groups.values()].filter((group) => group.source === "job" && group.series.every((one) => pointsOf(one) < 2));
    for (const { key } of single) groups.delete(key);
    return single.map((group) => ({ ...group, unit: unitOf(group.series[0].name) }));
  }

  #showSingles(metrics) {
    this.singles?.remove();
    if (!metrics.length) return;
    const column = this.section.querySelector('[data-charts="job"]');
    this.singles = make("div", "scroll");
    this.singles.tabIndex = 0;
    this.singles.append(singleTable(metrics, FEW_RUNS));
    if (this.runs) column.append(this.singles);
    else column.prepend(this.singles);
    column.hidden = false;
  }

  #add(group) {
    const pin = (title) => {
      if (!this.pinned.delete(title)) this.pinned.add(title);
      this.redraw();
    };
    const chart = new Chart(group, (range) => this.#zoom(range), this.runs ? (run) => this.light(run) : undefined, pin);
    this.#charts.set(group.key, chart);
    this.#boxOf(group).append(chart.element);
  }

  // Pinned charts come first, then the main metric's.
  #order() {
    const rank = ({ name }) => 2 - (this.pinned.has(name.textContent) ? 2 : name.textContent === this.section.dataset.main ? 1 : 0);
    for (const box of this.#groups.values()) {
      const shown = [...box.querySelectorAll(".chart")];
      for (const { chart } of shown) chart.markPinned(this.pinned.has(chart.name.textContent));
      const wanted = shown.toSorted((one, other) => rank(one.chart) - rank(other.chart));
      if (wanted.some((element, at) => element !== shown[at])) box.append(...wanted);
    }
  }

  #boxOf({ source, group: prefix }) {
    const group = this.runs ? "" : prefix; // compared charts stand side by side
    const key = `${source} ${group}`;
    if (!this.#groups.has(key)) {
      const box = make("div", "charts");
      if (group) box.append(make("h3", "", group));
      this.#groups.set(key, box);
      const column = this.section.querySelector(`[data-charts="${source}"]`);
      column.append(box);
      column.hidden = false;
    }
    return this.#groups.get(key);
  }
}
