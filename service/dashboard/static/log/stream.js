// The live events of one log. A browser opens only six connections to a server, for all tabs together, so a hidden tab
// holds none, and of several windows only the one used last streams: the others ask for new lines now and then.

import { isLive, refresh } from "../live.js";

const MAX_BEHIND = 5000;
const POLL_MS = 2000;
const RETRY_MS = 3000;

// `log` has `url` and `last`, the number of the last line known, and takes `line`, `partial`, `gap`, `page`, `note` and
// `end`.
export function follow(log) {
  const windows = new BroadcastChannel("gradient-log-stream");
  let source = null;
  let timer = 0;
  let ended = false;

  function close() {
    source?.close();
    source = null;
    clearTimeout(timer);
  }

  function stream() {
    if (ended || document.hidden) return;
    if (source && source.readyState !== EventSource.CLOSED) return;
    close();
    windows.postMessage("streaming");
    source = new EventSource(log.url("", { line: log.last, maxBehind: MAX_BEHIND }));
    for (const name of ["line", "partial", "gap"]) {
      source.addEventListener(name, (event) => log[name](JSON.parse(event.data)));
    }
    source.addEventListener("phase", () => refresh());
    source.addEventListener("end", end);
    source.addEventListener("open", () => log.note());
    source.addEventListener("error", lost);
  }

  function lost() {
    log.note("Connection lost; coming back…");
    if (source?.readyState !== EventSource.CLOSED) return;
    close();
    // Refreshes the page first: its response shows whether the job and the session still exist.
    timer = setTimeout(() => refresh().then(stream), isLive() ? RETRY_MS : 4 * RETRY_MS);
  }

  async function poll() {
    if (ended || document.hidden || source) return;
    try {
      const answer = await fetch(log.url("", { tail: 200, line: log.last }));
      if (!answer.ok) throw new Error(answer.statusText);
      const page = await answer.json();
      if (source) return;
      log.page(page);
      if (page.complete) return end();
    } catch {
      log.note("Connection lost; coming back…");
    }
    timer = setTimeout(poll, POLL_MS);
  }

  function end() {
    ended = true;
    close();
    windows.close();
    log.end();
    refresh();
  }

  windows.addEventListener("message", () => {
    if (ended || document.hidden) return;
    close();
    timer = setTimeout(poll, POLL_MS);
  });
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : stream()));
  window.addEventListener("focus", stream);
  stream();
}
