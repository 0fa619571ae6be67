"""A comparison from the command line to its table, with machines of scripted speeds."""

import csv
import html
import io
import json
import re
from collections import Counter

import pytest
from support.client_shell import ClientShell

# The times are written, not waited for, so the pace is exact on a busy machine, too.
TRAIN = """
import json, os, time
pace, noise = {"CPU": (10, 0.0), "V100": (500, 0.01)}[os.environ["GRADIENT_MACHINE_TYPE"]]
start = time.time()
with open(os.environ["GRADIENT_METRICS_FILE"], "a") as file:
    for step in range(0, 110, 10):
        value = step / 110 + noise * (10 + int(os.environ["SEED"]))
        print(json.dumps({"step": step, "time": start + step / pace, "accuracy": value}), file=file)
"""

# Images that are decompressed in every step, or once. Nothing is simulated.
FEED = """
import hashlib, os, zlib
import gradient_jobs
packed = zlib.compress(os.urandom(1 << 20) + bytes(15 << 20))
def decode(step):
    return sum(map(len, [zlib.decompress(packed) for _ in range(5)]))
def batches():
    kept = None
    for step in range(10):
        if kept is None or "CACHE" not in os.environ:
            kept = decode(step)
        yield kept
for step, batch in enumerate(gradient_jobs.watch_input(batches())):
    hashlib.pbkdf2_hmac("sha256", b"weights", b"gradient", 2000)
    gradient_jobs.log(step=step, loss=1 / (step + 1))
"""


@pytest.fixture
def shell(service, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "train.py").write_text(TRAIN)
    return ClientShell(service, tmp_path / "project", tmp_path)


def test_machines_of_known_speed_give_the_expected_table(service, shell):
    options = ["--machineType", "CPU,V100", "--repeats", "3", "--parallel", "--metric", "accuracy"]
    comparison = shell("compare", "create", *options, "--", "python3", "train.py").stdout.strip()
    shown = shell("compare", "show", comparison, "--wait", "--explain")
    assert "6 of 6 jobs have ended" in shown.stderr
    assert "say nothing about the real machines" in shown.stderr
    cpu, v100 = csv.DictReader(io.StringIO(shell("compare", "export", comparison, "--format", "csv").stdout))
    assert [row["machineType"] for row in (cpu, v100)] == ["CPU", "V100"]
    assert [float(row["stepsPerSecond"]) for row in (cpu, v100)] == pytest.approx([10, 500], rel=1e-3)
    assert float(v100["speedup"]) == pytest.approx(50, rel=1e-3)
    for row, pace in ((cpu, 10), (v100, 500)):
        price = float(row["pricePerHour"])
        assert float(row["costPer1000Steps"]) == pytest.approx(price * 1000 / pace / 3600, rel=1e-3)
    assert [row["fastest"] for row in (cpu, v100)] == ["2", "1"]
    assert [row["cheapest"] for row in (cpu, v100)] == ["2", "1"]
    assert [row["mostAccurate"] for row in (cpu, v100)] == ["2", "1"]
    assert (v100["onMetricTimeFront"], v100["onMetricCostFront"]) == ("True", "True"), "none is as accurate"
    assert "Pareto front of accuracy and cost (simulated): " in shown.stderr
    page = service.request("GET", f"/ui/comparisons/{comparison}", headers={"accept": "text/html"}).text
    charts = json.loads(html.unescape(re.search(r"data-curves='([^']*)'", page)[1]))
    kinds = Counter(series["kind"] for chart in charts for series in chart["series"])
    assert kinds == {"line": 12, "marks": 6, "steps": 3, "interval": 2}


RACE = """
import json, os, time
pace = {"CPU": 20, "V100": 500, "K80": float(os.environ.get("K80", "45"))}[os.environ["GRADIENT_MACHINE_TYPE"]]
pace *= 1 + 0.02 * (int(os.environ["SEED"]) % 3)
start = time.time()
time.sleep(float(os.environ.get("SLEEP", "0")))
with open(os.environ["GRADIENT_METRICS_FILE"], "a") as file:
    for step in range(0, 110, 10):
        print(json.dumps({"step": step, "time": start + step / pace, "loss": 1}), file=file)
"""


def race(shell, ceiling, *words):
    (shell.folder / "race.py").write_text(RACE)
    options = ["--machineType", "CPU,V100,K80", "--race", "--maxCost", ceiling, *words]
    ran = shell("compare", "create", *options, "--", "python3", "race.py")
    comparison = ran.stdout.split()[0]
    found = json.loads(shell("compare", "show", comparison, "--json").stdout)
    cost = sum(row["pricePerHour"] * one["seconds"] / 3600 for row in found["rows"] for one in row["members"])
    assert cost <= float(ceiling) * 1.01
    return ran, found


def test_a_race_ends_when_the_losers_are_known(shell):
    ran, found = race(shell, "5.00")
    assert found["decision"]["machineType"] == "V100"
    assert found["decision"]["contenders"] == ["V100"]
    jobs = {row["machineType"]: row["jobs"] for row in found["rows"]}
    assert 2 <= jobs["V100"] <= 5
    assert all(jobs[name] <= jobs["V100"] for name in ("CPU", "K80"))
    assert "of $5: decided." in ran.stderr
    assert "V100 is best (all are simulated, so this is not a recommendation): " in ran.stderr
    assert "V100 wins as long as it costs less than $" in ran.stderr


@pytest.mark.slow
def test_a_race_ends_before_its_ceiling_is_exceeded(shell):
    """A step on two of them costs about the same, so that it would take many more repeats than it pays for."""
    ran, found = race(shell, "0.021", "--envVars", "SLEEP=3", "--envVars", "K80=144.8")
    assert "another repeat would cost up to $" in ran.stderr
    assert all(row["jobs"] < 7 and row["failed"] == 0 for row in found["rows"])


def run(shell, program, *variables):
    """Run a program as a job, and return its prediction."""
    given = [word for each in variables for word in ("--envVars", each)]
    made = shell("jobs", "create", "--machineType", "CPU", *given, "--json", "--", "python3", program)
    job = json.loads(made.stdout)["id"]
    shell("jobs", "wait", job)
    return json.loads(shell("predict", job, "--json").stdout)


def test_a_starved_run_is_bound_by_input_and_a_cache_makes_it_fast(shell):
    (shell.folder / "feed.py").write_text(FEED)

    starved, cached = (run(shell, "feed.py", *variables) for variables in ((), ("CACHE=1",)))
    assert starved["bottleneck"]["kind"] == "input"
    assert "Cache the prepared examples" in starved["bottleneck"]["advice"][0]
    assert cached["stepsPerSecond"] > 4 * starved["stepsPerSecond"]
    assert cached["bottleneck"]["kind"] is None, "its device is judged by operations, which it does not report"
    assert cached["bottleneck"]["missing"][:2] == ["flops_per_step", "bytes_per_step"]
    assert cached["bottleneck"]["figures"][0]["value"] < 0.25
    assert starved["missing"] == ["flops_per_step", "bytes_per_step"]
