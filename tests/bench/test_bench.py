import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SERIES = {"what": str, "unit": str, "p50": float, "p99": float, "min": float, "max": float, "n": int, "rounds": list}
GOAL = {"what": str, "value": float, "limit": float, "bound": str, "met": bool}


def bench(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "bench", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize(
    ("name", "subject", "floor"),
    [
        ("submit", "POST /jobs", "raw insert, same stack"),
        ("artifact", "close, the file already on disk", "sha256 of 32 MiB"),
    ],
)
def test_measures_a_subject_beside_its_floor_and_says_so_in_json(name, subject, floor, tmp_path):
    done = bench("--quick", "--only", name, "--json", str(tmp_path / "report.json"))

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert json.loads((tmp_path / "report.json").read_text("utf-8")) == report
    assert (report["quick"], report["rounds"]) == (True, 1)
    assert {"at", "cpus", "python", "sqlite", "revision", "loadAverage"} <= report["machine"].keys()
    assert list(report["benches"]) == [name]
    series = {one["what"]: one for one in report["benches"][name]["series"]}
    assert {subject, floor} <= series.keys()
    for one in series.values():
        assert {key: type(one[key]) for key in SERIES} == SERIES
        assert 0 < one["min"] <= one["p50"] <= one["p99"] <= one["max"]
        assert len(one["rounds"]) == 1
    for goal in report["benches"][name]["goals"]:
        assert {key: type(goal[key]) for key in GOAL} == GOAL
        assert goal["met"] == (
            goal["value"] <= goal["limit"] if goal["bound"] == "at most" else goal["value"] >= goal["limit"]
        )
        assert goal["what"] in done.stderr


def test_an_unknown_name_is_refused_with_the_names_there_are():
    done = bench("--only", "nothing")

    assert done.returncode == 2
    assert "first-line" in done.stderr
    assert not done.stdout
