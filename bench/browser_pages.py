"""Pages of the dashboard in a headless Chromium: a list, a long log and a flood, charts, many tabs, all scripts."""

import gzip
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bench import bounds
from bench.measure import Goal, MissingRequirement, Result, Series, Size
from bench.server.filled_database import fill
from bench.server.swept_database import fill_sweep
from bench.service import NO_LIMITS, Service, run_server, submit_alone, wait_for

if TYPE_CHECKING:
    from support.browser import Browser


_ROOT = Path(__file__).parent.parent
_STATIC = _ROOT / "service" / "dashboard" / "static"
_CHARTS, _CURVES, _POINTS, _TABS = 12, 3, 1000, 20
_SLOW_SECONDS = 120.0
_ANSWERED = (
    "Math.max(...performance.getEntriesByType('resource').filter((one) => one.name.includes('/metrics'))"
    ".map((one) => one.responseEnd))"
)
_FLOOD = "seq -f 'step %.0f of training, loss 0.1234, and some more text' 1 {lines}"
_TRAINED = """exec python3 - <<'END'
import json, os, time
names = [split + "/curve" + str(curve) for curve in range({charts}) for split in ("train", "val", "test")]
with open(os.environ["GRADIENT_METRICS_FILE"], "a") as out:
    for step in range({points}):
        values = {{name: (step * (place + 1)) % 97 / 97 for place, name in enumerate(names)}}
        print(json.dumps({{"step": step, "time": time.time(), **values}}), file=out)
END
"""
# By the page's own clock: when its first rows, the awaited line and the last chart were there, and its longest task.
_OBSERVE = f"""
window.seen = {{}};
window.longest = 0;
const record = (name, there) => {{ if (!window.seen[name] && there) window.seen[name] = performance.now(); }};
new MutationObserver(() => {{
  const rows = document.querySelectorAll("#log .row");
  record("rows", rows.length);
  record("tail", rows.length && Number(rows[rows.length - 1].dataset.line) >= window.awaited);
  record("curves", document.querySelector(".chart canvas"));
  record("charts", document.querySelectorAll(".chart canvas").length >= {_CHARTS});
}}).observe(document, {{ childList: true, subtree: true }});
new PerformanceObserver((list) => {{
  for (const one of list.getEntries()) window.longest = Math.max(window.longest, one.duration);
}}).observe({{ type: "longtask", buffered: true }});
window.hovers = [];
addEventListener("mousemove", ({{ timeStamp }}) => {{
  requestAnimationFrame(() => setTimeout(() => window.hovers.push(performance.now() - timeStamp)));
}}, true);
window.until = async (condition) => {{
  const began = performance.now();
  while (!condition()) await new Promise((done) => setTimeout(done, 1));
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  return performance.now() - began;
}};
"""


def run_list(size: Size) -> Result:
    """Measure the list of jobs of a database with 1,000,000 of them."""
    count = size.pick(1_000_000, 10_000)
    shown = Series(f"50 of {count:,} jobs, page → load", "ms")
    with run_server("api", prepare=lambda home: fill(home, ended=count, queued=0)) as api, _signed_in(api) as browser:
        for turn in range(size.rounds + 1):
            if turn:
                shown.begin_round()
            for _ in range(size.pick(10, 3)):
                browser.open(_address(api, "/ui/jobs"))
                rows = browser.evaluate("document.querySelectorAll('tbody tr').length")
                if rows < 50:  # noqa: PLR2004 - a page of the list
                    raise ConnectionError(f"the list shows {rows} jobs")
                if turn:  # the first one warms up
                    shown.add(_loaded_ms(browser))
    return Result([shown], [Goal("list of 50 from all jobs, p50, ms", shown.p50, bounds.BROWSER_LIST_MS)])


def run_log(size: Size) -> Result:
    """Measure a log of 2,000,000 lines: its first view, any line, a search, and a page that follows it as it grows."""
    lines = size.pick(2_000_000, 50_000)
    first, jump, find = (
        Series(what, "ms") for what in ("page → last lines drawn", "go to a line → drawn", "search → found")
    )
    behind, task, nodes = (
        Series(what, unit)
        for what, unit in (
            ("end of a flood → its last line drawn", "ms"),
            ("longest task while it is followed", "ms"),
            ("nodes of the log", ""),
        )
    )
    series = [first, jump, find, nodes, behind, task]
    with run_server("up") as up, _signed_in(up) as browser:
        for _ in range(size.rounds):
            for measured in series:
                measured.begin_round()
            job_id = _follow_flood(up, browser, lines, behind, task)
            for turn in range(size.pick(5, 2)):
                browser.open(_address(up, f"/ui/jobs/{job_id}/log"))
                browser.wait_for("window.seen.rows", _SLOW_SECONDS)
                first.add(browser.evaluate("window.seen.rows"))
                browser.wait_for("!document.querySelector('[data-log-bar]').hidden")
                nodes.add(browser.evaluate("document.querySelectorAll('#log *').length"))
                jump.add(_go_to(browser, lines // 7 * (turn + 1)))
                find.add(_search(browser, f"step {lines - turn} of"))
    goals = [
        Goal("first view of the log, p50, ms", first.p50, bounds.BROWSER_LOG_MS),
        Goal("jump to any line, p50, ms", jump.p50, bounds.BROWSER_LOG_LINE_MS),
        Goal("search, p50, ms", find.p50, bounds.BROWSER_LOG_SEARCH_MS),
        Goal("nodes of the log, most", max(nodes.samples), bounds.BROWSER_LOG_NODES),
        Goal("end of a flood → at its tail, p50, ms", behind.p50, bounds.BROWSER_LOG_BEHIND_MS),
        Goal("longest task while following, most, ms", max(task.samples), bounds.BROWSER_LOG_TASK_MS),
    ]
    return Result(series, goals)


def run_charts(size: Size) -> Result:
    """Measure 12 charts of 3 x 1,000 points, the last of 20 tabs of a live job, and the size of all scripts."""
    drawn, tabs = Series(f"{_CHARTS} charts of {_CURVES} x {_POINTS:,}, drawn", "ms"), Series("the last tab", "ms")
    scripts = Series("JavaScript, gzipped", "kB")
    scripts.begin_round()
    scripts.add(sum(len(gzip.compress(path.read_bytes(), 6)) for path in _STATIC.rglob("*.js")) / 1000)
    program = _TRAINED.format(charts=_CHARTS, points=_POINTS)
    with run_server("up") as up, _signed_in(up) as browser:
        job_id = submit_alone(up, program)
        up.wait(job_id)
        # Charts are drawn once they are seen.
        browser("Emulation.setDeviceMetricsOverride", width=1440, height=6000, deviceScaleFactor=1, mobile=False)
        for _ in range(size.rounds):
            drawn.begin_round()
            for _ in range(size.pick(5, 2)):
                browser.open(_address(up, f"/ui/jobs/{job_id}/metrics"))
                browser.wait_for("window.seen.charts", _SLOW_SECONDS)
                drawn.add(browser.evaluate(f"window.seen.charts - {_ANSWERED}"))
        tabs.begin_round()
        live = submit_alone(up, "while sleep 0.2; do echo tick; done")
        wait_for(lambda: up.job(live)["state"] == "Running" or None, "the job to run")
        for _ in range(_TABS):
            browser.open_tab()
            began = time.monotonic()
            browser.open(_address(up, f"/ui/jobs/{live}/log"))
            browser.wait_for("document.querySelector('#log .row')", _SLOW_SECONDS)
            took = (time.monotonic() - began) * 1000
        tabs.add(took)
        with up.connect() as connection:
            connection.post(f"/jobs/{live}/stop?now=true", b"")
    goals = [
        Goal(f"{_CHARTS} charts, p50, ms", drawn.p50, bounds.BROWSER_CHARTS_MS),
        Goal(f"tab {_TABS} shows the log, ms", tabs.p50, bounds.BROWSER_TAB_MS),
        Goal("all scripts, kB gzipped", scripts.p50, bounds.BROWSER_SCRIPTS_KB),
    ]
    return Result([drawn, tabs, scripts], goals)


def run_runs(size: Size) -> Result:
    """Measure the workspace of the 200 runs of a sweep: until it can be used, all curves, and a hover."""
    runs, points = size.pick((200, 1000), (20, 100))
    usable, curves, hover = (
        Series(what, "ms")
        for what in (
            "page → first curves drawn",
            "page → all curves drawn",
            "mouse over a chart → all charts lit and read",
        )
    )
    prepare = partial(fill_sweep, runs=runs, points=points)
    with run_server("api", prepare=prepare, **NO_LIMITS) as api, _signed_in(api) as browser:
        for turn in range(size.rounds + 1):
            for measured in (usable, curves, hover):
                if turn:
                    measured.begin_round()
            browser.open(_address(api, "/ui/jobs?q=train&charts=1"))
            drawn = f"[...document.querySelectorAll('.chart')].some((one) => one.chart.series.length >= {runs})"
            browser.wait_for("window.seen.curves", _SLOW_SECONDS)
            all_ms = browser.evaluate(f"window.until(() => {drawn}).then(() => performance.now())")
            if turn:  # the first one reads the database
                usable.add(browser.evaluate("window.seen.curves"))
                curves.add(all_ms)
                for moved in _hover(browser, size.pick(200, 20)):
                    hover.add(moved)
    goals = [
        Goal("first curves, p50, ms", usable.p50, bounds.BROWSER_RUNS_MS),
        Goal("hover, p99, ms", hover.p99, bounds.BROWSER_HOVER_MS),
    ]
    return Result([usable, curves, hover], goals)


def _hover(browser: "Browser", moves: int) -> list[float]:
    """Move the mouse over a chart; return milliseconds from each event to the frame that shows all runs there."""
    rectangle = "(b => [b.left, b.top, b.width, b.height])(document.querySelector('.u-over').getBoundingClientRect())"
    left, top, width, height = browser.evaluate(rectangle)
    browser.evaluate("window.hovers = []")
    for move in range(moves):
        x, y = left + width * (move + 0.5) / moves, top + height * (0.2 + 0.6 * (move % 7) / 7)
        browser("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        browser.wait_for(f"window.hovers.length > {move}")
    return [float(took) for took in browser.evaluate("window.hovers")]


@contextmanager
def _signed_in(service: Service) -> Iterator["Browser"]:
    """Run a browser that has a session.

    Raises:
        MissingRequirement: There is no Chromium.
    """
    sys.path.append(str(_ROOT / "tests"))
    try:
        from support.browser import Browser, Chromium, find_chromium  # noqa: PLC0415 - the tests are no package of ours
    finally:
        sys.path.remove(str(_ROOT / "tests"))
    if find_chromium() is None:
        raise MissingRequirement("no Chromium is installed (apt-get install chromium)")
    with tempfile.TemporaryDirectory(prefix="gradient-bench-", ignore_cleanup_errors=True) as profile:
        chromium = Chromium(Path(profile))
        try:
            browser = Browser(chromium, size=(1440, 900))
            browser("Page.addScriptToEvaluateOnNewDocument", source=_OBSERVE)
            browser.sign_in(_address(service, ""), service.headers["x-api-key"])
            yield browser
        finally:
            chromium.close()


def _address(service: Service, path: str) -> str:
    return f"http://127.0.0.1:{service.port}{path}"


def _follow_flood(up: Service, browser: "Browser", lines: int, behind: Series, task: Series) -> str:
    """Follow a job that prints as fast as it can; return its id."""
    job_id = submit_alone(up, f"while [ ! -e go ]; do sleep 0.05; done; {_FLOOD.format(lines=lines)}")
    wait_for(lambda: up.job(job_id)["state"] == "Running" or None, "the job to run")
    browser.open(_address(up, f"/ui/jobs/{job_id}/log"))
    browser.evaluate(f"window.awaited = {lines}; window.longest = 0")
    next((up.home / "attempts").glob(f"{job_id}-1/**/workspace")).joinpath("go").touch()
    ended = datetime.fromisoformat(up.wait(job_id)["finishedAt"]).timestamp() * 1000
    browser.wait_for("window.seen.tail", _SLOW_SECONDS)
    behind.add(browser.evaluate("performance.timeOrigin + window.seen.tail") - ended)
    task.add(browser.evaluate("window.longest"))
    return job_id


def _go_to(browser: "Browser", line: int) -> float:
    """Go to a line; return milliseconds until it was drawn."""
    return float(
        browser.evaluate(
            f"""(() => {{
              const field = document.querySelector("[data-log-line]");
              field.value = {line};
              field.dispatchEvent(new Event("change"));
              return window.until(() => document.querySelector("#log .marked")?.dataset.line === "{line}");
            }})()"""
        )
    )


def _search(browser: "Browser", text: str) -> float:
    """Search the log; return milliseconds until the number of lines found was shown."""
    return float(
        browser.evaluate(
            f"""(() => {{
              const field = document.querySelector("[data-find] [name=query]");
              field.value = {json.dumps(text)};
              field.dispatchEvent(new Event("input", {{ bubbles: true }}));
              const output = document.querySelector("[data-find] output");
              return window.until(() => output.innerText.includes(" of "));
            }})()"""
        )
    )


def _loaded_ms(browser: "Browser") -> float:
    return float(browser.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
