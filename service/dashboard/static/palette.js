// Keys for the whole dashboard, and the palette: jobs, projects, pages and actions by a few letters of their names.

import { offerChoices } from "./choices.js";
import { isCommand } from "./table.js";

const KEYS = [
  ["/", "search jobs; find in a log"],
  ["Ctrl K", "go to a job, project, page or action"],
  ["n", "new job"],
  ["j  k", "next and previous job of a list"],
  ["x", "select the job"],
  ["Enter", "open whole the job that j and k show beside the list; Esc closes it"],
  ["o", "open the job"],
  ["1 … 9", "page of a job"],
  ["c", "clone the job"],
  ["s", "stop the job"],
  ["?", "this help"],
];
const CLICKED = { n: "#new-job", c: "#clone", s: "#stop-menu > summary" };
const PREFIX_MS = 1500;
let prefixed = 0;

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
  const { key } = event;
  const section = Date.now() - prefixed < PREFIX_MS && document.querySelector(`[data-go="${CSS.escape(key)}"]`);
  prefixed = key === "g" ? Date.now() : 0;
  if (section) {
    event.stopImmediatePropagation(); // a list has a meaning of its own for j
    section.click();
  } else if (key === "/") {
    const field = [...document.querySelectorAll("#q, [data-find] input[type=search]")].find((input) => input.offsetParent);
    event.preventDefault();
    if (field) field.select();
    else openPalette();
  } else if (key === "?") openHelp();
  else if (/^[1-9]$/.test(key)) document.querySelector(`.pages-of a:nth-child(${key})`)?.click();
  else if (key in CLICKED) {
    const control = document.querySelector(CLICKED[key]);
    control?.click();
    (control?.parentElement.open ? control.nextElementSibling.querySelector("button") : control)?.focus();
  }
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
  const sections = new Map([...document.querySelectorAll("[data-go]")].map((link) => [`g ${link.dataset.go}`, link.textContent.trim()]));
  for (const [key, text] of [...KEYS, ...sections]) list.append(make("dt", {}, make("kbd", { textContent: key })), make("dd", { textContent: text }));
  const close = make("form", { method: "dialog" }, make("button", { textContent: "Close" }));
  openDialog(make("dialog", { className: "keys", ariaLabel: "Keys" }, make("h2", { textContent: "Keys" }), list, close));
}

// What the page itself leads to or does, by the words on it.
function controls() {
  const offered = (selector, kind, of = "") => [...document.querySelectorAll(selector)].map((control) => ({
    text: (control.textContent.trim() || control.title).replace(/\s+/g, " ") + of,
    kind,
    run: () => {
      control.click();
      control.focus();
    },
  }));
  const actions = ".actions :is(a, button, summary):not(.menu > :not(summary) *, :disabled), #account button, #new-job";
  const selected = document.querySelector("[data-selected]")?.textContent;
  return [...offered(".bulk:not(.none) > button:not([data-every], :disabled)", "action", `: ${selected}`), ...offered(actions, "action"), ...offered(".sections a, #account nav a:last-child", "page")];
}

async function read(address) {
  const answer = await fetch(address, { headers: { Accept: "application/json" } });
  if (!answer.ok) throw new Error(answer.statusText);
  return answer.json();
}

const goTo = (url) => () => location.assign(url);

async function findJobs(text) {
  const queries = [text && `"${text.replaceAll('"', " ")}"`];
  if (/^j[a-z0-9]{4,13}$/.test(text)) queries.unshift(`id:${text}`); // the beginning of an id, or a name such as jigsaw
  const [projects, ...lists] = await Promise.all([
    read("/projects"),
    ...queries.map((query) => read(`/jobs?limit=8&fold=true&q=${encodeURIComponent(query)}`)),
  ]);
  const jobs = new Map(lists.flatMap((list) => list.jobs).map((job) => [job.id, job]));
  const found = [...jobs.values()].map((job) => {
    const members = job.arrayMembers && Object.values(job.arrayMembers).reduce((sum, count) => sum + count, 0);
    const query = `${job.arrayId?.startsWith("s") ? "sweep" : "array"}:${job.arrayId}`;
    return members
      ? { text: job.name, kind: `${members} jobs · ${job.project}`, run: goTo(`/ui/runs?q=${query}`), matched: true }
      : { text: job.name, kind: `${job.id} · ${job.project}`, run: goTo(`/ui/jobs/${job.id}`), matched: true };
  });
  for (const { name } of projects.projects) found.push({ text: name, kind: "project", run: goTo(`/ui/projects/${encodeURIComponent(name)}`) });
  return found;
}

// The exact name comes first, then what begins with the text, has it in it, or has it elsewhere than in its name.
function rank(choice, wanted) {
  const name = choice.text.toLowerCase();
  return [name === wanted, name.startsWith(wanted), name.includes(wanted), choice.matched].indexOf(true);
}

async function find(text) {
  const found = [...await findJobs(text).catch(() => []), ...controls()];
  if (!text) return found;
  const wanted = text.toLowerCase();
  const fitting = found.filter((choice) => rank(choice, wanted) >= 0).sort((a, b) => rank(a, wanted) - rank(b, wanted));
  return [...fitting, { text: `Search jobs for “${text}”`, kind: "list", run: goTo(`/ui/jobs?q=${encodeURIComponent(text)}`) }];
}

function openPalette() {
  const field = make("input", { placeholder: "Go to a job, project, page or action", autocomplete: "off", spellcheck: false, ariaLabel: "Go to" });
  const list = make("ul", { id: "palette-list", ariaLabel: "Results" });
  const dialog = make("dialog", { className: "palette", ariaLabel: "Go to" }, field, list);
  offerChoices(field, list, {
    modal: true,
    find: () => find(field.value.trim()),
    item: ({ text, kind }) => [text, make("small", { textContent: kind })],
    take: ({ run }) => {
      dialog.close();
      run();
    },
  });
  openDialog(dialog);
}
