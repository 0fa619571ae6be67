// Whole tables sorted by a click on a head, and filtered by what is typed; the server orders those that have pages.
// Where a phone shows no heads, a choice of them stands before both kinds.

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

function offerOrders(table) {
  if (table.previousElementSibling?.matches(".sort-by") || table.tBodies[0].rows.length < 2) return;
  const label = Object.assign(document.createElement("label"), { className: "sort-by", textContent: "Sort by" });
  const choice = document.createElement("select");
  choice.append(new Option("–", ""));
  for (const head of table.tHead.querySelectorAll("th:has(a, button)")) {
    for (const [mark, descending, order] of [["↑", "", "ascending"], ["↓", "1", "descending"]]) {
      const value = head.dataset.sort ? `?sort=${descending && "-"}${head.dataset.sort}` : `${head.cellIndex},${descending}`;
      const isNow = head.ariaSort === order;
      choice.append(new Option(`${head.textContent.trim()} ${mark}`, value, isNow, isNow));
    }
  }
  choice.addEventListener("change", () => {
    if (choice.value.startsWith("?")) return location.assign(choice.value);
    const [column, descending] = choice.value.split(",");
    if (choice.value) orders.set(table.id, [Number(column), Boolean(descending)]);
    sort(table);
  });
  label.append(choice);
  table.before(label);
}

function filter(field) {
  const words = field.value.toLowerCase().split(/\s+/);
  for (const row of document.querySelectorAll("[data-sorts] tbody tr")) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
}

export function sortTables() {
  const field = document.querySelector("[data-filter]");
  const start = () => {
    document.querySelectorAll("[data-sorts]").forEach(sort);
    document.querySelectorAll("[data-sorts], [data-ordered]").forEach(offerOrders);
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
