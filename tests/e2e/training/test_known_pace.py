"""Programs of known pace on two real machine types: their ranks, and predictions from one to the other."""

import json

import pytest
from support.client_shell import ClientShell
from support.deployment import Deployment

# Peaks are as 4 to 1; steps take half as long.
MACHINES = "".join(
    f"""
[core{cores}]
backend = "process"
kind = "cpu"
accelerator = "{cores} cores"
count = 1
replicas = 1
memory_gb = 8
memory_bandwidth_gb_per_s = {10 * cores}
tflops = {{ fp32 = {0.1 * cores} }}
price_per_hour = {price}
price_source = "own price, 2026-11"
spec_source = "a test"
"""
    for cores, price in ((1, 0.1), (4, 0.3))
)

PROGRAM = """
import os, time
import gradient_jobs
seconds = {"core1": 0.2, "core4": 0.1}[os.environ["GRADIENT_MACHINE_TYPE"]]
known = dict(input_wait_share=0, flops_per_step=1e10, bytes_per_step=1e8, compute_bits=32, replicas=1)
began = time.monotonic()
for step in range(12):
    # Until a time of its own: a busy machine delays a step, and not those after it.
    time.sleep(max(0, began + (step + 1) * seconds - time.monotonic()))
    gradient_jobs.log(step=step, loss=1 / (step + 1), **known)
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("service")
    (folder / "machines.toml").write_text(MACHINES)
    deployment = Deployment(folder / "home", GRADIENT_MACHINES__FILE=str(folder / "machines.toml"))
    deployment.start_up()
    yield deployment
    deployment.stop()


@pytest.mark.slow
def test_sleeping_programs_are_ranked_and_predicted_as_they_sleep(service, tmp_path):
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "main.py").write_text(PROGRAM)
    shell = ClientShell(service, tmp_path / "project", tmp_path)
    words = ["--machineType", "core1,core4", "--repeats", "3", "--", "python3", "main.py"]
    comparison = shell("compare", "create", *words).stdout.strip()
    shell("compare", "show", comparison, "--wait")
    found = json.loads(shell("compare", "show", comparison, "--json").stdout)
    small, large = found["rows"]
    assert [row["simulated"] for row in (small, large)] == [False, False]
    assert [row["fastest"] for row in (small, large)] == [2, 1]
    assert [row["cheapest"] for row in (small, large)] == [1, 2]
    assert small["slowerBy"]["value"] == pytest.approx(1, abs=0.1), "twice as long"
    decision = found["decision"]
    assert (decision["machineType"], decision["contenders"]) == ("core1", ["core1"])
    assert decision["breakEvenPrice"] == pytest.approx(0.15, rel=0.05)

    for row, other, speedup in ((large, "core1", 0.5), (small, "core4", 2.0)):
        predicted = json.loads(shell("predict", row["members"][0]["jobId"], "--json").stdout)["machines"]
        by_name = {one["machineType"]: one for one in predicted}
        own = by_name[row["machineType"]]
        assert own["speedup"] == {"value": 1.0, "low": 1.0, "high": 1.0}
        assert by_name[other]["speedup"]["value"] == pytest.approx(speedup, rel=0.1)
        assert by_name[other]["correction"] is not None
