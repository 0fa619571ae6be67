// "5 min ago" or "in 5 min" instead of a date; the exact time stays in the element's title.

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

export function tellTimes(root) {
  const now = Date.now() + CORRECTION;
  for (const element of root.querySelectorAll("time[datetime]")) {
    const seconds = (now - Date.parse(element.dateTime)) / 1000;
    const coming = "coming" in element.dataset;
    const far = coming ? -seconds : seconds;
    const step = STEPS.find(([below]) => far < below);
    if (!step) continue;
    const length = `${Math.floor(far / step[1])} ${step[2]}`;
    const told = coming ? `in ${length}` : `${length} ago`;
    const near = coming ? (far < LATE ? "later than estimated" : "soon") : "just now";
    const text = far < 5 ? near : told;
    if (element.textContent !== text) element.textContent = text;
  }
}
