// Keeps a page up to date: fetches it again, and changes what differs in its parts. `part=live` leaves out what takes long.
// Nothing about jobs is known here; what the page shows is decided on the server alone.

import { holdFocus, note, update } from "./morph.js";

const EVERY_MS = 3000;
const SLOWEST_MS = 30_000;
const WHOLE_EVERY = 20; // refreshes
const LONGEST_PRESS_MS = 5000; // menus of the browser take the release of theirs

const main = document.querySelector("main");
const listeners = [];
let failures = 0;
let left = WHOLE_EVERY;
let pause = 0;
let timer = 0;
let under_way = null;
let pressed = null;
let release = () => {};

for (const part of main.querySelectorAll("[data-part]")) note(part);

export function isLive() {
  return main.dataset.live === "yes";
}

export function onChange(listener) {
  listeners.push(listener);
}

export function keepFresh() {
  if (!("live" in main.dataset)) return;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) return;
    left = 0;
    refresh();
  });
  // A click is a press and a release of the same thing: nothing moves away between them.
  addEventListener("pointerdown", () => {
    pressed = new Promise((resolve) => {
      release = resolve;
      setTimeout(resolve, LONGEST_PRESS_MS);
    });
  });
  for (const end of ["pointerup", "pointercancel"]) addEventListener(end, () => setTimeout(release)); // after the click
  schedule();
}

// A page that tells of its end in a notification of the browser goes on while it is not seen.
export function tellOfEnd(button) {
  if (!isLive() || !("Notification" in window)) return;
  button.hidden = false;
  button.addEventListener("click", async () => {
    button.disabled = (await Notification.requestPermission()) === "granted";
    if (button.disabled) main.dataset.tells = "";
    button.title = button.ariaLabel = button.disabled ? "You will be told when it ends" : "Notifications of this site are blocked";
  });
}

// Links and forms of the workspace change its address: what differs is changed, and the charts stay.
const OF_THE_LIST = ["q", "ids", "sort", "cols", "after", "before", "at", "did", "state", "project", "machineType", "tag", "query", "charts", "open"];

export function stayOnPage() {
  const go = (event, { dataset }, address) => {
    event.preventDefault();
    for (const [name, value] of new URLSearchParams(location.search)) if (!OF_THE_LIST.includes(name)) address.searchParams.append(name, value);
    if (dataset.stay === "load") return location.assign(address);
    history.pushState(null, "", address);
    return Promise.resolve(under_way).then(refresh).then(() => failures && location.reload());
  };
  addEventListener("popstate", () => location.reload());
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[data-stay]");
    if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey) go(event, link, new URL(link.href));
  });
  document.addEventListener("submit", (event) => {
    if (!("stay" in event.target.dataset)) return;
    const given = new URLSearchParams([...new FormData(event.target)].filter(([, value]) => value));
    go(event, event.target, new URL(`?${given}`, event.target.action));
  });
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
  if (!isLive() || (document.hidden && !("tells" in main.dataset))) return;
  timer = setTimeout(refresh, Math.max(pause, Math.min(EVERY_MS * 2 ** failures, SLOWEST_MS)));
}

async function fetchParts() {
  const address = new URL(location.href);
  left -= 1;
  if (left > 0) address.searchParams.set("part", "live");
  else left = WHOLE_EVERY;
  pause = 0;
  try {
    const answer = await fetch(address, { headers: { Accept: "application/json, */*;q=0.5" } });
    // The session ended, or the job was deleted: the server's page reports it.
    if (answer.status === 401 || answer.status === 404) location.reload();
    pause = 1000 * Number(answer.headers.get("Retry-After") ?? 0);
    if (!answer.ok) throw new Error(answer.statusText);
    const live = isLive();
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    await pressed;
    updateParts(fresh);
    if (live && !isLive()) document.querySelector("[data-tell]")?.remove();
    if (live && !isLive() && "tells" in main.dataset) new Notification(document.title);
    failures = 0;
  } catch {
    failures += 1;
  }
  const why = pause ? "The server is busy" : "The server does not answer";
  const stale = failures > 1 ? `${why}; what is shown may be out of date.` : "";
  const banner = document.getElementById("stale");
  if (banner.textContent !== stale) banner.textContent = stale;
}

function updateParts(fresh) {
  const active = document.activeElement;
  for (const part of fresh.querySelectorAll("[data-part]")) {
    const shown = main.querySelector(`[data-part="${part.dataset.part}"]`);
    if (!shown || !update(shown, part)) continue;
    for (const listener of listeners) listener(shown);
    if (shown.contains(active)) holdFocus(active, shown);
  }
  document.title = fresh.title;
  const icon = fresh.querySelector('link[rel="icon"]')?.getAttribute("href");
  const shownIcon = document.querySelector('link[rel="icon"]');
  if (icon && shownIcon.getAttribute("href") !== icon) shownIcon.setAttribute("href", icon);
  main.dataset.live = fresh.querySelector("main")?.dataset.live ?? "no";
}
