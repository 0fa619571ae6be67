// Selected rows of the list of jobs: kept while the list refreshes, and by keys j, k, x and o.

import { onChange } from "./live.js";

const selected = new Set();
let last = "";
let current = "";

export function selectRows(form) {
  let whole = false; // all that match, in place of the ticked rows
  const boxes = () => [...form.querySelectorAll('input[name="ids"]')];

  function show() {
    const all = boxes();
    const bulk = form.querySelector("[data-bulk]");
    const every = form.querySelector("[data-every]");
    for (const box of all) {
      box.checked = selected.has(box.value);
      const { classList } = box.closest("tr");
      classList.toggle("picked", box.checked);
      classList.toggle("current", box.value === current);
    }
    const count = all.filter((box) => box.checked).length;
    if (bulk) {
      bulk.classList.toggle("none", count === 0);
      bulk.querySelector("[data-selected]").textContent = `${count} selected`;
      if (every) every.hidden = count < all.length || count === 0;
      whole &&= every !== null && !every.hidden;
      form.elements.every.value = whole ? "yes" : "";
      if (whole) bulk.querySelector("[data-selected]").textContent = `All ${every.dataset.every} that match selected`;
      if (whole) every.hidden = true;
      for (const button of bulk.querySelectorAll("[data-few]")) button.disabled = whole;
      const ofOthers = all.some((box) => box.checked && "ofOthers" in box.dataset);
      bulk.querySelector("[data-refused]").hidden = !ofOthers;
      for (const button of bulk.querySelectorAll("[data-several]")) button.disabled = count < 2;
      for (const button of bulk.querySelectorAll("[data-changes]")) button.disabled = ofOthers;
      if (!whole && !all.some((box) => box.checked && "open" in box.dataset)) bulk.querySelector("[data-stops]").disabled = true;
      for (const [mark, verb] of [["stops", "Stop"], ["deletes", "Delete"]]) bulk.querySelector(`[data-${mark}]`).textContent = whole ? `${verb} all ${every.dataset.every} that match` : `${verb} the ${count} selected`;
    }
    const head = form.querySelector("[data-all]");
    if (head) {
      head.checked = count > 0 && count === all.length;
      head.indeterminate = count > 0 && count < all.length;
    }
  }

  function choose(values, on) {
    whole = false;
    for (const value of values) {
      if (on) selected.add(value);
      else selected.delete(value);
    }
    show();
  }

  form.addEventListener("click", (event) => {
    if (event.target.matches("[data-every]")) {
      whole = true;
      show();
    }
    const box = event.target.closest('input[name="ids"]');
    if (!box) return;
    const values = boxes().map((one) => one.value);
    const from = values.indexOf(last);
    const to = values.indexOf(box.value);
    const range = event.shiftKey && from >= 0 ? values.slice(Math.min(from, to), Math.max(from, to) + 1) : [box.value];
    last = box.value;
    choose(range, box.checked);
  });
  form.addEventListener("change", (event) => {
    if (event.target.matches("[data-all]")) choose(boxes().map((box) => box.value), event.target.checked);
  });

  document.addEventListener("keydown", (event) => {
    if (!["j", "k", "x", "o"].includes(event.key) || !isCommand(event)) return;
    const all = boxes();
    const place = all.findIndex((box) => box.value === current);
    if (event.key === "x" && place >= 0) choose([current], !all[place].checked);
    else if (event.key === "o" && place >= 0) all[place].closest("tr").querySelector("th a").click();
    else if (event.key === "j" || event.key === "k") {
      const next = all[Math.max(0, Math.min(all.length - 1, place + (event.key === "j" ? 1 : -1)))];
      if (!next) return;
      current = next.value;
      show();
      next.closest("tr").scrollIntoView({ block: "nearest" });
      document.dispatchEvent(new CustomEvent("run", { detail: next.closest("tr") }));
    }
  });

  // Boxes may be ticked before this runs, and those of a page that the browser had kept are.
  const all = form.querySelector("[data-all]")?.checked;
  for (const box of boxes()) if (all || box.checked) selected.add(box.value);
  onChange(show);
  show();
}

export function isCommand(event) {
  const typing = event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]");
  return !event.ctrlKey && !event.metaKey && !event.altKey && !typing && !document.querySelector("dialog[open]");
}
