// Tables with all of their rows on the page: sorted by a click on a head, filtered by what is typed in a field.

import { onChange } from "./live.js";

const orders = new Map(); // [column, descending] by the table's id

function key(row, column) {
  const cell = row.cells[column];
  const text = cell.dataset.value ?? cell.textContent.trim();
  return text === "" || Number.isNaN(Number(text)) ? text.toLowerCase() : Number(text);
}

function sort(table) {
  const [column, descending] = orders.get(table.id) ?? [];
  [...table.tHead.rows[0].cells].forEach((head, at) => head.setAttribute("aria-sort", at !== column ? "none" : descending ? "descending" : "ascending"));
  if (column === undefined) return;
  const rows = [...table.tBodies[0].rows].map((row) => [key(row, column), row]);
  const compare = (one, other) => (typeof one === typeof other ? (one < other ? -1 : Number(one > other)) : typeof one === "number" ? -1 : 1);
  rows.sort(([one], [other]) => compare(one, other) * (descending ? -1 : 1));
  table.tBodies[0].append(...rows.map(([, row]) => row));
}

function filter(field) {
  const words = field.value.toLowerCase().split(/\s+/);
  for (const row of document.querySelectorAll("[data-sorts] tbody tr")) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
}

export function sortTables() {
  const field = document.querySelector("[data-filter]");
  const start = () => {
    document.querySelectorAll("[data-sorts]").forEach(sort);
    if (field) filter(field);
  };
  field?.addEventListener("input", start);
  document.addEventListener("click", ({ target }) => {
    const head = target.closest("[data-sorts] th button")?.parentElement;
    const table = head?.closest("table");
    if (table) orders.set(table.id, [head.cellIndex, head.getAttribute("aria-sort") === "ascending"]);
    if (table) sort(table);
  });
  onChange(start);
  start();
}
