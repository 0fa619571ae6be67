"""Kill -9 of the worker and the API, again and again, while a job runs: the job never notices."""

import random
import time

import pytest
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN, fault_trial, tries
from support.faults.invariants import check_invariants
from support.faults.job_journal import recorded_command

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 300)]

KILLS = tries(10, 50)
# Prints a line every 10 ms until it is told to end, and then says how far it came, and who it was all along.
TRAINING = """
import hashlib, json, os, pathlib, time
artifacts = pathlib.Path(os.environ["GRADIENT_ARTIFACTS_DIR"])
storage = pathlib.Path(os.environ["GRADIENT_STORAGE_DIR"])
metrics = open(os.environ["GRADIENT_METRICS_FILE"], "a")
storage.joinpath("pid").write_text(str(os.getpid()))
step = 0
while not storage.joinpath("enough").exists():
    step += 1
    print("step", step, flush=True)
    if step % 10 == 0:
        metrics.write(json.dumps({"step": step, "loss": 1 / step}) + "\\n")
        metrics.flush()
        artifacts.joinpath("checkpoint.new").write_text(str(step))
        artifacts.joinpath("checkpoint.new").rename(artifacts / "checkpoint")
    time.sleep(0.01)
storage.joinpath("steps").write_text(str(step))
"""


def test_training_never_notices_ten_kills_of_worker_and_api(deployment):
    chance = random.Random(20181030)  # noqa: S311 - repeatable, not secret
    api, worker = deployment.start_api(), deployment.start_worker()
    (deployment.datasets / "training.py").write_text(TRAINING)
    job_id = deployment.submit(
        recorded_command('python "$GRADIENT_STORAGE_DIR/datasets/training.py" | tee "$truth.out"', 5)
    )
    pid_file = deployment.storage / "pid"
    pid = wait_until(lambda: pid_file.exists() and pid_file.read_text(), "the training to begin")
    repairs = []
    for kill in range(KILLS):
        lines = len(deployment.raw_log(job_id).splitlines())
        wanted = lines + chance.randrange(1, 40)
        wait_until(lambda: len(deployment.raw_log(job_id).splitlines()) >= wanted, f"line {wanted}")  # noqa: B023
        worker.kill()
        if kill % 2:
            api.kill()
            api = deployment.start_api()
        worker = deployment.start_worker()
        killed = time.monotonic()
        wait_until(lambda: adoptions(deployment, job_id) > kill, "the job to be adopted")  # noqa: B023
        repairs.append(time.monotonic() - killed)
    job = deployment.job(job_id)
    assert (job["state"], job["attempt"]) == ("Running", 1)
    assert pid_file.read_text() == pid, "the same process all along"
    with fault_trial("F2", deployment) as one:
        one.tries, one.repairs = KILLS, repairs
        deployment.open_gate("enough")
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["attempt"]) == ("Failed", 5, 1)
    steps = int((deployment.storage / "steps").read_text())
    assert deployment.raw_log(job_id) == b"".join(b"step %d\n" % step for step in range(1, steps + 1))
    rows = deployment.request("GET", f"/jobs/{job_id}/logs?line=0&limit=10000").json()["lines"]
    assert [row["line"] for row in rows] == list(range(1, len(rows) + 1))
    (series,) = deployment.request("GET", f"/jobs/{job_id}/metrics?name=loss&maxPoints=10000").json()["series"]
    assert [point["step"] for point in series["points"]] == list(range(10, steps + 1, 10))
    artifacts = deployment.artifacts(job_id)
    assert artifacts["state"] == "complete"
    assert deployment.artifact(job_id, "checkpoint") == str(steps - steps % 10).encode()
    assert adoptions(deployment, job_id) == KILLS


def adoptions(deployment, job_id):
    return sum(event["kind"] == "adopted" for event in deployment.events(job_id))


def test_training_killed_from_outside_fails_with_what_it_wrote(deployment):
    deployment.start_up()
    script = "echo $$ >pid; exec python -u -c \"print('before', flush=True); import time; time.sleep(600)\""
    job_id = deployment.submit(
        recorded_command(f'leave weights weights; echo $$ >"$GRADIENT_STORAGE_DIR/pid"; {script}')
    )
    wait_until(lambda: b"before" in deployment.raw_log(job_id), "its first line")
    leader = int((deployment.storage / "pid").read_text())
    (training,) = [process for process in deployment.find_job_processes(job_id) if process.pid == leader]
    training.kill()
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["reason"]) == ("Failed", 137, "killed")
    assert "137" in job["message"]
    assert "memory" in job["message"]
    assert deployment.artifact(job_id, "weights") == b"weights"
    assert deployment.raw_log(job_id) == b"before\n"
    check_invariants(deployment)


def test_all_processes_killed_at_once_is_said(deployment):
    deployment.start_up()
    job_id = deployment.submit("echo before; sleep 600")
    wait_until(lambda: b"before" in deployment.raw_log(job_id), "its first line")
    for process in deployment.find_job_processes(job_id):
        process.kill()
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["reason"]) == ("Error", None, "process_lost")
    assert deployment.raw_log(job_id) == b"before\n"
    check_invariants(deployment)


def test_a_deploy_leaves_jobs_running(deployment):
    up = deployment.start_up()
    job_id = deployment.submit('echo one; until [ -e "$GRADIENT_STORAGE_DIR/go" ]; do sleep 0.05; done; echo two')
    wait_until(lambda: b"one" in deployment.raw_log(job_id), "its first line")
    up.signal(15)
    assert up.wait() == 0, up.read_log()
    assert deployment.find_job_processes(job_id), "the job goes on"
    deployment.start_up()
    (deployment.storage / "go").touch()
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["attempt"]) == ("Stopped", 1)
    assert deployment.raw_log(job_id) == b"one\ntwo\n"


def test_two_workers_of_one_name_are_refused(deployment):
    deployment.start_api()
    first = deployment.start_worker("twin")
    wait_until(lambda: "is ready" in first.read_log(), "the first worker")
    second = deployment.start_worker("twin")
    assert second.wait() == 1
    assert "--name" in second.read_log()
    assert first.alive()
