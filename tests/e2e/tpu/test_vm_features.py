"""The features of every job, on a TPU VM as on the worker's host."""

import csv
import io
import sys
from pathlib import Path

import pytest
from support.deployment import wait_until

MACHINES = ["CPU", "TPU"]
ENCODER = (Path(__file__).parents[2] / "support" / "event_files.py").read_text()


def submit(service, machine, program, argument="", **spec):
    files = {"main.py": program, "uploaded.txt": "as it was"}
    files |= {"event_files.py": ENCODER} if "event_files" in program else {}
    return service.submit(f"'{sys.executable}' main.py {argument}", machineType=machine, files=files, **spec)


def read(service, job_id, source="job"):
    """Return the (step, value) points of each metric."""
    found = {}
    for row in csv.DictReader(io.StringIO(service.cli("jobs", "metrics", job_id, "--csv").stdout)):
        if row["source"] == source:
            found.setdefault(row["name"], []).append((float(row["step"]) if row["step"] else None, float(row["value"])))
    return found


ALL_METRICS = """
import json, os, pathlib, socket, time
from event_files import write_scalars

held = bytearray(200_000_000)
workspace, artifacts = pathlib.Path("runs"), pathlib.Path(os.environ["GRADIENT_ARTIFACTS_DIR"])
print("epoch 1: loss 0.5", flush=True)
write_scalars(workspace / "train", "acc", [0.25, 0.5])
write_scalars(artifacts / "runs" / "val", "acc", [0.75], writer="other")
with open(os.environ["GRADIENT_METRICS_FILE"], "a") as lines:
    lines.write(json.dumps({"step": 1, "own": 4}) + chr(10))
sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for line in ("sent:3|g", "counted:2|c", "counted:5|c"):
    tagged = f"{line}|#container_name:{os.environ['GRADIENT_JOB_ID']}"
    sender.sendto(tagged.encode(), ("127.0.0.1", int(os.environ["GRADIENT_STATSD_PORT"])))
while not os.path.exists(os.environ["GO_ON"]):
    time.sleep(0.05)
write_scalars(workspace / "train", "acc", [1.0], first_step=2)
(workspace / "train").rename("moved")
write_scalars(artifacts / "runs" / "val", "acc", [0.875], writer="other", first_step=1)
"""


@pytest.mark.parametrize("machine", MACHINES)
def test_metrics_of_every_source(service, tmp_path, machine):
    patterns = ["step=epoch (\\d)", "loss=^epoch \\d: loss (.*)"]
    job_id = submit(service, machine, ALL_METRICS, metricPatterns=patterns, envVars={"GO_ON": str(tmp_path / "go")})
    wait_until(lambda: len(read(service, job_id)) == 6, "all metrics, while the job runs")
    wait_until(lambda: "cpu_percent" in read(service, job_id, "system"), "two samples of its usage")
    (tmp_path / "go").touch()
    job = service.wait_ended(job_id)
    assert job["state"] == "Stopped", service.raw_log(job_id)
    metrics = read(service, job_id)
    assert metrics.pop("counted")[-1] == (None, 7)
    assert metrics == {
        "loss": [(1, 0.5)],
        "acc": [(0, 0.25), (1, 0.5), (2, 1.0)],
        "val/acc": [(0, 0.75), (1, 0.875)],
        "own": [(1, 4)],
        "sent": [(None, 3)],
    }
    usage = {name: [value for _, value in points] for name, points in read(service, job_id, "system").items()}
    assert (usage.keys(), set(usage["processes"])) == ({"cpu_percent", "memory_bytes", "processes"}, {3})
    assert 200e6 < job["usage"]["peakMemoryBytes"] == max(usage["memory_bytes"]) < 300e6


ON_EACH_HOST = """
import os, pathlib
from event_files import write_scalars

rank = float(os.environ["TPU_WORKER_ID"])
pathlib.Path("output").write_text("x")
pathlib.Path("left").write_text("x")
print(f"loss {rank + 0.5}\\rloss {rank + 0.25}")
write_scalars(pathlib.Path("runs"), "acc", [rank])
"""


def test_a_slice_has_the_outputs_of_all_hosts_and_the_numbers_and_notes_of_one(service):
    job_id = submit(service, "TPU v5e-16", ON_EACH_HOST, metricPatterns=["loss=^loss (.*)"], outputs=["output"])
    job = service.wait_ended(job_id)
    assert job["state"] == "Stopped", service.raw_log(job_id)
    paths = [file["path"] for file in service.artifacts(job_id)["files"]]
    assert paths == ["hosts/1/output", "hosts/2/output", "hosts/3/output", "output"]
    assert [note.partition(": ")[2][:8] for note in job["notes"] if "not kept" in note] == ["runs/eve"]
    assert read(service, job_id) == {"loss": [(None, 0.5), (None, 0.25)], "acc": [(0, 0)]}


LEAVES_FILES = """
import os, pathlib, shutil, signal, sys, time

def leave(code):
    pathlib.Path("outputs", "deep").mkdir(parents=True)
    pathlib.Path("outputs", "deep", "a.png").write_text("picture")
    os.symlink("deep/a.png", "outputs/last.png")
    os.symlink("/etc/passwd", "outputs/out")
    os.mkfifo("outputs/pipe")
    pathlib.Path("model.pt").write_text("weights")
    pathlib.Path("uploaded.txt").write_text("changed")
    pathlib.Path("copied.bin").write_bytes(bytes(2000))
    shutil.copy("copied.bin", os.environ["GRADIENT_ARTIFACTS_DIR"])
    print("left", flush=True)
    sys.exit(code)

if sys.argv[1:]:
    leave(3)
signal.signal(signal.SIGTERM, lambda *_: leave(0))
print("ready", flush=True)
while True:
    time.sleep(600)
"""


@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize("machine", MACHINES)
def test_outputs_are_artifacts_and_what_else_is_left_is_named(service, machine, stops):
    job_id = submit(service, machine, LEAVES_FILES, "" if stops else "ends", outputs=["outputs/**", "none/*"])
    if stops:
        wait_until(lambda: service.raw_log(job_id), "the program")
        service.request("POST", f"/jobs/{job_id}/stop")
    job = service.wait_ended(job_id)
    ended = ("Cancelled", "stopped_by_user", 0) if stops else ("Failed", "exit_nonzero", 3)
    assert (job["state"], job["reason"], job["exitCode"]) == ended, service.raw_log(job_id)
    artifacts = service.artifacts(job_id)
    assert [file["path"] for file in artifacts["files"]] == ["copied.bin", "outputs/deep/a.png", "outputs/last.png"]
    assert service.artifact(job_id, "outputs/last.png") == b"picture"
    why = "a symbolic link to a target outside the folder is not followed"
    assert {skipped["path"]: skipped["why"] for skipped in artifacts["skipped"]} == {
        "outputs/out": why,
        "outputs/pipe": "a fifo is not a file",
    }
    unmatched, left = job["notes"]
    assert unmatched == "No file of the workspace matches the output 'none/*'."
    assert left.startswith("2 files of the workspace were not kept: model.pt 7 B, uploaded.txt 7 B. Write to ")


@pytest.mark.parametrize("machine", [*MACHINES, "TPU v5e-16"])
def test_a_later_attempt_begins_with_the_artifacts_of_the_one_before(service, machine):
    command = 'cd "$GRADIENT_ARTIFACTS_DIR"; mkdir -p sub; echo "$GRADIENT_ATTEMPT" >>sub/steps; '
    command += 'echo kept >>"kept-$GRADIENT_ATTEMPT"; [ "$GRADIENT_ATTEMPT" = 2 ]'
    job_id = service.submit(command, machineType=machine, maxAttempts=2)
    job = service.wait_ended(job_id)
    assert (job["state"], job["attempt"]) == ("Stopped", 2), job["message"]
    files = ["kept-1", "kept-2", "sub/steps"]
    hosts = [""] + ([f"hosts/{rank}/" for rank in range(1, 4)] if "v5e" in machine else [])
    assert [file["path"] for file in service.artifacts(job_id)["files"]] == sorted(
        host + file for host in hosts for file in files
    )
    assert {service.artifact(job_id, f"{host}sub/steps") for host in hosts} == {b"1\n2\n"}
    assert {service.artifact(job_id, f"{host}kept-1") for host in hosts} == {b"kept\n"}


def test_artifacts_that_stay_on_the_vm_are_named(service):
    command = 'cd "$GRADIENT_ARTIFACTS_DIR"; echo kept >model; echo lost >"$(printf "two\\nlines")"'
    job_id = service.submit(command, machineType="TPU")
    service.wait_ended(job_id)
    artifacts = service.artifacts(job_id)
    assert ([file["path"] for file in artifacts["files"]], artifacts["state"]) == (["model"], "partial")
    [skipped] = artifacts["skipped"]
    assert "on the TPU VM, refused by the bucket" in skipped["why"]
