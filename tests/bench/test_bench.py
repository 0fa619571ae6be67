import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.servers.private_docker_engine import SHELL_IMAGE

pytestmark = pytest.mark.timeout(400)

ROOT = Path(__file__).parents[2]
SERIES = {"what": str, "unit": str, "p50": float, "p99": float, "min": float, "max": float, "n": int, "rounds": list}
GOAL = {"what": str, "value": float, "limit": float, "bound": str, "met": bool}


def bench(*arguments: str, **settings: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "bench", *arguments]
    env = os.environ | settings
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=350, check=False)


@pytest.fixture
def wrk():
    return shutil.which("wrk")


@pytest.mark.parametrize(
    ("name", "subject", "floor"),
    [
        pytest.param("submit", "POST /jobs", "raw insert, same stack", marks=pytest.mark.slow),
        pytest.param(
            *("start", "gradient-server api: until it serves", "bare FastAPI: until it serves"), marks=pytest.mark.slow
        ),
        ("artifact", "close, the file already on disk", "sha256 of 32 MiB"),
        pytest.param("sweep", "sweep of 8 trials", "pool of processes", marks=pytest.mark.slow),
        pytest.param(
            *("prediction", "mnist-cnn, predicted for 2 CPUs", "mnist-cnn, 2 of 2 CPUs"),
            marks=[pytest.mark.slow, pytest.mark.tensorflow],
        ),
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


@pytest.mark.slow
def test_containers_are_measured_on_the_engine_that_the_settings_name(docker_server):
    done = bench(
        *("--quick", "--only", "container"),
        GRADIENT_DOCKER__URL=docker_server.url,
        GRADIENT_DOCKER__DEFAULT_IMAGE=SHELL_IMAGE,
    )

    assert done.returncode == 0, done.stderr
    measured = json.loads(done.stdout)["benches"]["container"]
    assert {one["what"] for one in measured["series"]} >= {
        "submit → first line read",
        "SDK: create → first line read",
        "docker run: → first line read",
    }
    with docker_server.client() as client:
        assert client.containers(all=True) == []


@pytest.mark.slow
@pytest.mark.usefixtures("wrk")
def test_reads_are_measured_with_many_connections_beside_their_floor():
    done = bench("--quick", "--only", "reads")

    assert done.returncode == 0, done.stderr
    table = json.loads(done.stdout)["benches"]["reads"]["table"]
    assert {line["server"] for line in table} == {"service", "floor"}
    assert len({line["read"] for line in table}) >= 6
    for line in table:
        assert line["perSecond"] > 0
        assert line["errors"] == 0
        assert 0 < line["p50Ms"] <= line["p99Ms"]
        assert line["cpuMs"] > 0


@pytest.mark.slow
def test_followers_of_a_log_are_measured_with_other_calls_beside_them():
    done = bench("--quick", "--only", "followers")

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["benches"]["followers"]
    (line,) = found["table"]
    assert (line["server"], line["followers"], line["wrong"], line["callErrors"]) == ("service", 80, 0, 0)
    assert 0 < line["lineP50Ms"] <= line["lineP99Ms"]
    assert found["goals"][0]["met"]


def test_without_wrk_reads_are_reported_as_not_measured():
    done = bench("--quick", "--only", "reads", PATH="/nowhere")

    assert done.returncode == 0, done.stderr
    assert "apt-get install wrk" in json.loads(done.stdout)["benches"]["reads"]["notRun"]
