// Widths that are dragged, and kept in this browser: of the table beside its charts, and of its columns.

import { onChange } from "./live.js";

const LEAST = 40;
const STEPS = { ArrowLeft: -16, ArrowRight: 16 };
const kept = JSON.parse(localStorage.getItem("widths") ?? "{}");

export function resizeTable() {
  const splitter = document.querySelector("[data-splitter]");
  const columns = () => document.querySelectorAll("[data-runs-table] th[aria-sort]").forEach((head) => {
    const cells = () => [...head.closest("table").rows].map((row) => row.cells[head.cellIndex]);
    const apply = (width) => cells().forEach(({ style }) => Object.assign(style, { maxWidth: width, minWidth: width, overflow: "hidden", textOverflow: "ellipsis" }));
    if (head.querySelector(".grip")) return kept[head.dataset.key] && apply(`${kept[head.dataset.key]}px`);
    const grip = document.createElement("span");
    grip.className = "grip";
    head.append(grip);
    drag(grip, head.dataset.key, head, apply);
  });
  if (splitter) drag(splitter, "table", splitter.previousElementSibling, (width) => {
    splitter.parentElement.style.setProperty("--table", width);
    splitter.ariaValueNow = Math.round((100 * parseInt(width)) / innerWidth);
  });
  columns();
  onChange((part) => part.dataset.part === "runs" && columns());
}

function drag(grip, name, resized, apply) {
  const set = (width) => {
    kept[name] = Math.max(LEAST, Math.round(width));
    apply(`${kept[name]}px`);
    localStorage.setItem("widths", JSON.stringify(kept));
  };
  grip.addEventListener("pointerdown", (event) => {
    event.preventDefault();
    grip.setPointerCapture(event.pointerId);
    const rest = resized.offsetWidth - event.clientX;
    grip.onpointermove = ({ clientX }) => set(rest + clientX);
    grip.onlostpointercapture = () => (grip.onpointermove = null);
  });
  grip.addEventListener("keydown", ({ key }) => key in STEPS && set(resized.offsetWidth + STEPS[key]));
  if (kept[name]) apply(`${kept[name]}px`);
}
