// Every time that a page shows: local, with the name of its zone. "5 min ago" or "in 5 min" instead, unless the switch
// of the page says otherwise; the exact time stays in the element's title.

const LATE = -60;
// The times are the server's: what this browser's clock is behind by, unless that is only the time that a page takes.
const behind = Date.parse(document.documentElement.dataset.now) - Date.now();
const CORRECTION = Math.abs(behind) > 10_000 ? behind : 0;
const STEPS = [
  [60, 1, "s"],
  [3600, 60, "min"],
  [86400, 3600, "h"],
  [86400 * 14, 86400, "d"],
];

const ZONE = new Intl.DateTimeFormat("en", { timeZoneName: "short" });
const two = (number) => String(number).padStart(2, "0");

export function clock(date) {
  return `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

export function day(date) {
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}

function zone(date) {
  return ZONE.formatToParts(date).find(({ type }) => type === "timeZoneName").value;
}

export function exactTime(date) {
  return `${day(date)} ${clock(date)} ${zone(date)}`;
}

export function tellTimes(root, which = "time[datetime]") {
  const now = Date.now() + CORRECTION;
  for (const element of root.querySelectorAll(which)) {
    const date = new Date(element.dateTime);
    element.title = exactTime(date);
    const seconds = (now - date) / 1000;
    const coming = "coming" in element.dataset;
    const far = coming ? -seconds : seconds;
    const step = STEPS.find(([below]) => far < below);
    const length = step && `${Math.floor(far / step[1])} ${step[2]}`;
    const told = coming ? `in ${length}` : `${length} ago`;
    const near = coming ? (far < LATE ? "later than estimated" : "soon") : "just now";
    const text = !step || document.documentElement.dataset.times === "dates" ? `${day(date)} ${clock(date).slice(0, 5)} ${zone(date)}` : far < 5 ? near : told;
    if (element.textContent !== text) element.textContent = text;
  }
}
