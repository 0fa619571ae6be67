// Keeps a page up to date: fetches it again, and replaces the parts that differ.
// Nothing about jobs is known here; what the page shows is decided on the server alone.

const EVERY_MS = 3000;
const SLOWEST_MS = 30_000;

const main = document.querySelector("main");
const listeners = [];
let failures = 0;
let timer = 0;
let under_way = null;

export function isLive() {
  return main.dataset.live === "yes";
}

export function onChange(listener) {
  listeners.push(listener);
}

export function keepFresh() {
  if (!("live" in main.dataset)) return;
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) refresh();
  });
  schedule();
}

export function refresh() {
  under_way ??= fetchParts().finally(() => {
    under_way = null;
    schedule();
  });
  return under_way;
}

function schedule() {
  clearTimeout(timer);
  if (!isLive() || document.hidden) return;
  timer = setTimeout(refresh, Math.min(EVERY_MS * 2 ** failures, SLOWEST_MS));
}

async function fetchParts() {
  const address = new URL(location.href);
  address.searchParams.set("part", "live");
  try {
    const answer = await fetch(address, { headers: { Accept: "application/json, */*;q=0.5" } });
    // The session ended, or the job was deleted: the server's page reports it.
    if (answer.status === 401 || answer.status === 404) location.reload();
    if (!answer.ok) throw new Error(answer.statusText);
    replaceParts(new DOMParser().parseFromString(await answer.text(), "text/html"));
    failures = 0;
  } catch {
    failures += 1;
  }
  const stale = failures > 1 ? "The server does not answer; what is shown may be out of date." : "";
  const banner = document.getElementById("stale");
  if (banner.textContent !== stale) banner.textContent = stale;
}

function replaceParts(fresh) {
  for (const part of fresh.querySelectorAll("[data-part]")) {
    const shown = main.querySelector(`[data-part="${part.dataset.part}"]`);
    const text = part.innerHTML;
    if (!shown || shown.dataset.was === text) continue;
    part.dataset.was = text;
    for (const open of shown.querySelectorAll("details[open][id]")) {
      part.querySelector(`#${CSS.escape(open.id)}`)?.setAttribute("open", "");
    }
    const focused = shown.contains(document.activeElement) ? document.activeElement.id : "";
    part.className = shown.className === part.className ? part.className : part.className || shown.className;
    shown.replaceWith(document.adoptNode(part));
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
    for (const listener of listeners) listener(part);
  }
  document.title = fresh.title;
  const icon = fresh.querySelector('link[rel="icon"]')?.getAttribute("href");
  const shownIcon = document.querySelector('link[rel="icon"]');
  if (icon && shownIcon.getAttribute("href") !== icon) shownIcon.setAttribute("href", icon);
  main.dataset.live = fresh.querySelector("main")?.dataset.live ?? "no";
}
