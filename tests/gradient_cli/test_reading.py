"""Metrics, running jobs, differences, links, and searches in lists and logs."""

import json
import os
import pty
import signal
from datetime import UTC, datetime, timedelta

import pytest

OTHER = "jzzzzzzz000000"


def series(name, values, source="job", seconds=10):
    points = [
        {
            "step": None if source == "system" else at * 10,
            "time": f"2024-05-01T10:00:{at * seconds:02}.000Z",
            "value": x,
        }
        for at, x in enumerate(values)
    ]
    return {"name": name, "source": source, "points": points, "last": values[-1], "min": min(values),
            "max": max(values)}  # fmt: skip


METRICS = {
    "series": [
        series("loss", [2.0, 1.0, 0.5]),
        series("cpu_percent", [90.0, 180.0], "system"),
        series("memory_bytes", [1e9, 2.5e9], "system"),
    ],
    "leftOut": None,
}


def test_metrics_as_a_table_with_curves(cli, server, protocol):
    server.on("GET", f"/jobs/{protocol.id}/metrics", METRICS)
    head, loss, _cpu, memory = cli("jobs", "metrics", protocol.id).stdout.splitlines()
    assert head.split() == ["METRIC", "LAST", "MIN", "MAX", "STEP", "CURVE"]
    assert loss.split() == ["loss", "0.5", "0.5", "2", "20", "█▃▁"]
    assert memory.split()[:3] == ["memory_bytes", "2.3", "GiB"]
    assert "CURVE" not in cli("jobs", "metrics", protocol.id, env={"PYTHONIOENCODING": "latin-1"}).stdout


def test_all_values_of_long_metrics_are_read_in_pages(cli, server, protocol):
    def rows(first):
        values = [{"loss": 0.5 - at, "lr": 0.1} if at else {"loss": "NaN"} for at in range(first, first + 3)]
        row = {"attempt": 1, "source": "job", "time": "2024-05-01T10:00:00.000Z"}
        return [row | {"step": first + at, "values": one} for at, one in enumerate(values)]

    pages = [
        {"rows": rows(0), "next": "1.job.3", "leftOut": None},
        {"rows": [], "next": "1.job.4", "leftOut": None},
        {"rows": rows(3), "next": None, "leftOut": "said"},
    ]
    server.on("GET", f"/jobs/{protocol.id}/metrics/rows", *pages, *pages)
    shown = cli("jobs", "metrics", protocol.id, "--json")
    loss, lr = json.loads(shown.stdout)["series"]
    assert [at["value"] for at in loss["points"]] == ["NaN", -0.5, -1.5, -2.5, -3.5, -4.5]
    assert (loss["last"], loss["min"], loss["max"], len(lr["points"])) == (-4.5, -4.5, -0.5, 5)
    assert "said" in shown.stderr
    assert [request.query.get("after") for request in server.requests] == [None, "1.job.3", "1.job.4"]
    lines = cli("jobs", "metrics", protocol.id, "--csv").stdout.splitlines()
    assert (len(lines), lines[1]) == (12, "loss,job,1,0,2024-05-01T10:00:00.000Z,NaN")


def test_a_job_without_metrics_says_how_to_write_them(cli, server, protocol):
    server.on("GET", f"/jobs/{protocol.id}/metrics", {"series": [], "leftOut": "values above the limit"})
    shown = cli("jobs", "metrics", protocol.id)
    assert "$GRADIENT_METRICS_FILE" in shown.stderr
    assert "values above the limit" in shown.stderr


def test_top_shows_the_running_jobs_once_in_a_pipe(cli, server, protocol):
    running = protocol.job(state="Running", durationSeconds=65.0, cost=0.5, attempt=2)
    server.on("GET", "/jobs", {"jobs": [running, protocol.job(id=OTHER, state="Running")], "next": None})
    server.on("GET", f"/jobs/{protocol.id}/metrics", METRICS)  # the other one is deleted meanwhile: 404
    head, first, second = cli("jobs", "top").stdout.splitlines()
    names = ["ID", "NAME", "MACHINE", "CPU", "MEMORY", "GPU", "METRIC", "STEP", "STEP/S", "RAN", "COST"]
    assert head.split() == names
    values = [protocol.id, "mnist", "CPU", "180%", "2.3", "GiB", "loss", "0.5", "20", "1", "1m", "05s", "$0.5000"]
    assert first.split() == values
    assert second.split() == [OTHER, "mnist", "CPU"]
    assert server.requests[0].query["state"] == "Running"
    assert server.requests[1].query["attempt"] == "2"
    found = json.loads(cli("jobs", "top", "--json").stdout)["jobs"][0]
    assert found["metric"] == {"name": "loss", "value": 0.5, "step": 20, "stepsPerSecond": 1.0}
    server.on("GET", "/jobs", {"jobs": [], "next": None})
    assert "no running jobs" in cli("jobs", "top").stderr


def test_top_counts_idle_gpus_in_the_mean(cli, server, protocol):
    gpus = [("gpu0_percent", 90.0), ("gpu1_percent", 0.0), ("gpu2_percent", None)]
    series = [{"name": name, "source": "system", "last": last, "points": []} for name, last in gpus]
    server.on("GET", "/jobs", {"jobs": [protocol.job(state="Running")], "next": None})
    server.on("GET", f"/jobs/{protocol.id}/metrics", {"series": series})
    assert json.loads(cli("jobs", "top", "--json").stdout)["jobs"][0]["gpuPercent"] == 45.0


def test_top_is_redrawn_on_a_terminal_until_interrupted(cli, server, protocol):
    running = {"jobs": [protocol.job(state="Running")], "next": None}
    server.on("GET", "/jobs", running, protocol.error(502, "bad gateway"), running)
    main, side = pty.openpty()
    with cli.start("jobs", "top", "--interval", "1", stdout=side, env={"NO_COLOR": "1"}) as process:
        shown = ""
        while shown.count("\x1b[H") < 2:
            shown += os.read(main, 65536).decode()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0
    assert shown.count(protocol.id) >= 1
    os.close(main)
    os.close(side)


def test_a_log_is_downloaded_byte_for_byte(cli, server, protocol):
    raw = b"\x00\xff\x1b[2J" + b"x" * 3_000_000
    server.on("GET", f"/jobs/{protocol.id}/logs/raw", protocol.Reply(raw))
    assert cli("jobs", "logs", protocol.id, "--to", "job.log").returncode == 0
    assert (cli.folder / "job.log").read_bytes() == raw
    assert cli("jobs", "logs", protocol.id, "--to", "nosuch/job.log").returncode == 1


def test_the_difference_of_two_jobs(cli, server, protocol):
    values = {"first": "CPU", "second": "V100"}
    changed = {"path": "a.py", "firstSize": 4, "secondSize": 2000, "diff": "-x\n+\x1b[2Jy", "leftOut": None}
    large = {**changed, "path": "b.bin", "diff": None, "leftOut": "It is not text."}
    counts = {"addedCount": 3, "removedCount": 0, "changedCount": 2, "unchangedCount": 7}
    files = {"added": [{"path": "new.py", "size": 1}], "removed": [], "changed": [changed, large], "leftOut": None}
    answer = {
        "first": protocol.id,
        "second": OTHER,
        "differences": {"machineType": values, "timeLimit": {"first": None, "second": 60}},
        "hidden": ["envVars.API_KEY"],
        "workspace": files | counts,
    }
    server.on("GET", f"/jobs/{protocol.id}/diff", answer)
    shown = cli("jobs", "diff", protocol.id, OTHER)
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert rows[:3] == [["OPTION", protocol.id, OTHER], ["machineType", "CPU", "V100"], ["timeLimit", "-", "60"]]
    listed = [["added", "new.py", "1", "B"], ["changed", "a.py", "2.0", "kB"], ["changed", "b.bin", "2.0", "kB"]]
    assert rows[3:] == [[], ["FILE", "PATH", "SIZE"], *listed]
    assert "may differ: envVars.API_KEY" in shown.stderr
    assert "2 more files differ" in shown.stderr
    patch = cli("jobs", "diff", protocol.id, OTHER, "--patch")
    assert patch.stdout.endswith("\n\n-x\n+y\n")
    assert "b.bin: It is not text." in patch.stderr
    assert json.loads(cli("jobs", "diff", protocol.id, OTHER, "--json").stdout) == answer
    same = {"first": protocol.id, "second": protocol.id, "differences": {}, "hidden": [], "workspace": None}
    server.on("GET", f"/jobs/{protocol.id}/diff", same)
    assert "no option differs" in cli("jobs", "diff", protocol.id, protocol.id).stderr


def test_open_prints_the_link_and_starts_the_browser_of_a_desktop(cli, server, protocol):
    server.on("GET", f"/jobs/{protocol.id}", protocol.job())
    opened = cli.folder / "opened"
    browser = cli.folder / "browser"
    browser.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    browser.chmod(0o755)
    link = f"http://x/ui/jobs/{protocol.id}"
    assert cli("jobs", "open", protocol.id).stdout == f"{link}\n"
    assert not opened.exists()
    assert cli("jobs", "open", protocol.id, env={"BROWSER": f"{browser} %s"}).stdout == f"{link}\n"
    assert opened.read_text() == f"{link}\n"


def test_filters_of_the_list(cli, server, protocol):
    server.on("GET", "/jobs", {"jobs": [protocol.job()], "next": None})
    assert cli("jobs", "list", "--tag", "a,b", "-q", "resnet", "--mine", "--since", "10m").returncode == 0
    asked = server.requests[-1].query
    since = datetime.fromisoformat(asked.pop("since"))
    assert asked == {"tag": "a,b", "q": "resnet", "mine": "true", "limit": "50"}
    assert timedelta(minutes=10) <= datetime.now(UTC) - since < timedelta(minutes=11)
    assert cli("jobs", "list", "--since", "2026-01-31T09:00Z").returncode == 0
    assert server.requests[-1].query["since"] == "2026-01-31T09:00:00+00:00"
    refused = cli("jobs", "list", "--since", "yesterday")
    assert refused.returncode == 2
    assert "since: 'yesterday' is not a time" in refused.stderr


class LogServer:
    """Answers for a log of 100 lines, one a second; searches at most 60 lines at once.

    Attributes:
        page: Lines of a page at most.
        growth: Lines written after each page.
    """

    def __init__(self, server, protocol):
        self.asked, self.searched = [], []
        self.total, self.page, self.growth = 100, 2000, 0
        self._fallback, self._protocol = server.answer, protocol
        server.answer = self.answer

    def answer(self, request):
        if request.path.endswith("/logs/search"):
            return self._search(request.query["query"].lower(), int(request.query["line"]))
        if not request.path.endswith("/logs"):
            return self._fallback(request)
        query = {name: int(value) for name, value in request.query.items()}
        self.asked.append(query)
        total = self.total
        after = total - query["tail"] if "tail" in query else query.get("line", 0)
        last = min(total, after + min(query["limit"], self.page))
        self.total += self.growth
        rows = [
            {"line": n, "timestamp": f"2024-05-01T10:{n // 60:02}:{n % 60:02}.000Z", "message": f"Step {n}"}
            for n in range(after + 1, last + 1)
        ]
        return self._protocol.Reply({"lines": rows, "total": total, "complete": True})

    def _search(self, text, after):
        end = min(100, after + 60)
        self.searched.append((after, end))
        found = [n for n in range(after + 1, end + 1) if text in f"step {n}"]
        return self._protocol.Reply({"lines": found, "searchedTo": end, "complete": end == 100})


@pytest.fixture
def log(cli, server, protocol):
    answers = LogServer(server, protocol)

    def read(*args):
        shown = cli("jobs", "logs", protocol.id, *args)
        assert shown.returncode == 0, shown.stderr
        return shown.stdout.splitlines(), shown.stderr

    read.asked, read.searched, read.answers = answers.asked, answers.searched, answers
    return read


def test_lines_of_a_time(log):
    found, _ = log("--since", "2024-05-01T10:01:30Z", "--until", "2024-05-01T10:01:32Z")
    assert found == ["Step 90", "Step 91", "Step 92"]
    assert len(log.asked) < 12, "a search by halves, not of the whole log"
    assert log("--since", "2024-05-01T09:00Z")[0][0] == "Step 1"
    assert log("--since", "1m") == ([], "no more lines\n")
    assert log("--until", "2024-05-01T09:00Z") == ([], "no lines before that time\n")


def test_lines_with_a_text(log):
    assert log("--search", "STEP 10")[0] == ["Step 10", "Step 100"]
    found, _ = log("--search", "step 7", "--since", "2024-05-01T10:01:00Z", "--json")
    assert [json.loads(line)["line"] for line in found] == list(range(70, 80))
    assert log("--search", "nosuch") == ([], "no line contains 'nosuch'\n")


def test_the_server_finds_the_lines_with_a_text(log):
    assert log("--search", "step 100")[0] == ["Step 100"]
    assert log.searched == [(0, 60), (60, 100)]
    assert log.asked == [{"line": 0, "limit": 1}, {"line": 99, "limit": 1}], "no other line is read"
    log.asked.clear()
    assert log("--search", "step 7", "--line", "70")[0] == [f"Step {n}" for n in range(71, 80)]
    assert log.asked[1:] == [{"line": 70, "limit": 9}]
    found, said = log("--search", "step 7", "--until", "2024-05-01T10:00:30Z")
    assert (found, said) == (["Step 7"], "")
    assert log("--search", "Step", "--line", "100") == ([], "no more lines\n")


def test_lines_of_one_node_of_a_slice(cli, server, protocol):
    texts = ["preparing", "[1] up", "[10] up", "[0] up", "[1] down"]
    rows = [{"line": n, "timestamp": "2024-05-01T10:00:00.000Z", "message": text} for n, text in enumerate(texts, 1)]

    def answer(request):
        if request.path.endswith("/search"):
            return protocol.Reply({"lines": [5], "searchedTo": 5, "complete": True})
        if not request.path.endswith("/logs"):
            return protocol.Reply(protocol.job())
        return protocol.Reply({"lines": rows[int(request.query.get("line", 0)) :]})

    server.answer = answer
    assert cli("jobs", "logs", protocol.id, "--rank", "1").stdout.splitlines() == ["up", "down"]
    assert cli("jobs", "logs", protocol.id, "--rank", "1", "--search", "DO").stdout.splitlines() == ["down"]
    assert cli("jobs", "logs", protocol.id, "--rank", "2").stderr == "no lines of rank 2\n"
    assert "rank: must not be negative" in cli("jobs", "logs", protocol.id, "--rank", "-1").stderr


@pytest.mark.parametrize(
    "args", [["--since", "x"], ["--tail", "1", "--since", "1m"], ["-f", "--until", "1m"], ["--to", "-", "--rank", "1"]]
)
def test_options_of_logs_that_exclude_each_other(cli, protocol, args):
    assert cli("jobs", "logs", protocol.id, *args).returncode == 2


def test_attempts_beyond_those_allowed_are_explained(cli, server, protocol):
    server.on("GET", f"/jobs/{protocol.id}", protocol.job(attempt=3, maxAttempts=2, machineFaults=2))
    assert "1 of 2, not counting 2 attempts ended by a machine fault" in cli("jobs", "show", protocol.id).stdout
