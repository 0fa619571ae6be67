// Keys for the whole dashboard, and the palette: jobs, projects and pages by a few letters of their names.

import { isCommand } from "./table.js";

const WAIT_MS = 150;
const KEYS = [
  ["/", "search jobs"],
  ["Ctrl K", "go to a job, project or page"],
  ["n", "new job"],
  ["j  k", "next and previous job of a list"],
  ["x", "select the job"],
  ["o", "open the job"],
  ["?", "this help"],
];

export function listenForKeys() {
  document.addEventListener("keydown", (event) => {
    if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k" && !event.altKey) {
      event.preventDefault();
      openPalette();
    } else if (isCommand(event)) command(event);
  });
  document.getElementById("go-to").addEventListener("click", (event) => {
    event.preventDefault();
    openPalette();
  });
  document.getElementById("show-keys").addEventListener("click", openHelp);
}

function command(event) {
  if (event.key === "/") {
    const field = document.getElementById("q") ?? document.getElementById("search");
    event.preventDefault();
    if (field?.offsetParent) field.select();
    else openPalette();
  } else if (event.key === "n") document.getElementById("new-job")?.click();
  else if (event.key === "?") openHelp();
}

function make(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

function openDialog(dialog) {
  document.querySelector("dialog[open]")?.close();
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) dialog.close();
  });
  document.body.append(dialog);
  dialog.showModal();
}

function openHelp() {
  const list = make("dl");
  for (const [key, text] of KEYS) list.append(make("dt", {}, make("kbd", { textContent: key })), make("dd", { textContent: text }));
  const close = make("form", { method: "dialog" }, make("button", { textContent: "Close" }));
  openDialog(make("dialog", { className: "keys", ariaLabel: "Keys" }, make("h2", { textContent: "Keys" }), list, close));
}

function pages() {
  const links = [...document.querySelectorAll(".sections a, #new-job, .brand")];
  return links.map((link) => ({ text: link.matches(".brand") ? "Now" : link.textContent.trim(), kind: "page", url: link.href }));
}

async function read(address) {
  const answer = await fetch(address, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}

async function find(text) {
  const found = pages();
  const queries = [text && `"${text.replaceAll('"', " ")}"`];
  if (/^j[a-z0-9]{4,13}$/.test(text)) queries.unshift(`id:${text}`); // the beginning of an id, or a name such as jigsaw
  const [projects, ...lists] = await Promise.all([
    read("/projects"),
    ...queries.map((query) => read(`/jobs?limit=8&q=${encodeURIComponent(query)}`)),
  ]);
  const jobs = new Map(lists.flatMap((list) => list.jobs).map((job) => [job.id, job]));
  for (const job of jobs.values()) found.push({ text: job.name, kind: `${job.id} · ${job.project}`, url: `/ui/jobs/${job.id}`, matched: true });
  for (const one of projects.projects) found.push({ text: one.name, kind: "project", url: `/ui/jobs?project=${encodeURIComponent(one.name)}` });
  const wanted = text.toLowerCase();
  const fitting = found.filter((one) => one.matched || one.text.toLowerCase().includes(wanted));
  if (text) fitting.push({ text: `Search jobs for “${text}”`, kind: "list", url: `/ui/jobs?q=${encodeURIComponent(text)}` });
  return fitting;
}

function openPalette() {
  const field = make("input", { type: "search", placeholder: "Go to a job, project or page", autocomplete: "off" });
  const list = make("ul", { id: "palette-list" });
  list.setAttribute("role", "listbox");
  list.setAttribute("aria-label", "Results");
  for (const [name, value] of Object.entries({ role: "combobox", "aria-expanded": "true", "aria-controls": list.id, "aria-label": "Go to" })) {
    field.setAttribute(name, value);
  }
  let shown = [];
  let chosen = 0;
  let asked = 0;
  let timer = 0;

  function mark() {
    [...list.children].forEach((item, place) => item.setAttribute("aria-selected", String(place === chosen)));
    list.children[chosen]?.scrollIntoView({ block: "nearest" });
    field.setAttribute("aria-activedescendant", list.children[chosen]?.id ?? "");
  }

  async function update() {
    const number = ++asked;
    let found;
    try {
      found = await find(field.value.trim());
    } catch {
      found = pages();
    }
    if (number !== asked) return;
    shown = found;
    chosen = 0;
    list.replaceChildren(...shown.map((one, place) => {
      const item = make("li", { id: `palette-${place}` }, one.text, make("small", { textContent: one.kind }));
      item.setAttribute("role", "option");
      item.addEventListener("click", () => location.assign(one.url));
      return item;
    }));
    mark();
  }

  field.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(update, WAIT_MS);
  });
  field.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      chosen = (chosen + (event.key === "ArrowDown" ? 1 : -1) + shown.length) % Math.max(1, shown.length);
      mark();
    } else if (event.key === "Enter" && shown[chosen]) {
      event.preventDefault();
      location.assign(shown[chosen].url);
    }
  });
  openDialog(make("dialog", { className: "palette", ariaLabel: "Go to" }, field, list));
  update();
}
