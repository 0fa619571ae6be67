// The entry point of every page: starts the parts that update themselves.

import { drawMetrics } from "./charts.js";
import { offerCopies } from "./copy.js";
import { keepFresh, onChange } from "./live.js";
import { followLog } from "./log.js";
import { tellTimes } from "./times.js";

function enliven(part) {
  tellTimes(part);
  offerCopies(part);
}

enliven(document);
onChange(enliven);
setInterval(() => tellTimes(document), 10_000);

for (const form of document.querySelectorAll("[data-filters]")) {
  form.classList.add("by-itself");
  form.addEventListener("change", () => form.requestSubmit());
}

const log = document.querySelector("[data-log]");
if (log) followLog(log);

const metrics = document.querySelector("[data-metrics]");
if (metrics) drawMetrics(metrics);

keepFresh();
