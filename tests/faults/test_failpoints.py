"""Kill, or freeze, the process at every named point: the job runs once, and nothing of it is lost."""

import hashlib
import signal

import pytest
from deployment import Deployment, wait_until

from core.failpoints import FAILPOINTS, failpoint

SUBMITTING = sorted(name for name in FAILPOINTS if name.startswith("submit_"))
RUNNING = sorted(set(FAILPOINTS) - set(SUBMITTING))
LINES = 300
OUTPUT = b"".join(b"line %d\n" % number for number in range(1, LINES + 1))
# Counts its starts in a folder that outlives it, prints, leaves a file, and ends with a code of its own.
COMMAND = f"""
echo started >>"$GRADIENT_STORAGE_DIR/starts-$GRADIENT_JOB_ID"
i=0; while [ $i -lt {LINES} ]; do i=$((i+1)); echo "line $i"; done
printf 'the model' >"$GRADIENT_ARTIFACTS_DIR/model"
echo '{{"step": 1, "loss": 0.5}}' >>"$GRADIENT_METRICS_FILE"
exit 7
"""

pytestmark = pytest.mark.faults


QUICK = {
    "GRADIENT_WORKER__LEASE_SECONDS": "2",
    "GRADIENT_WORKER__HEARTBEAT_SECONDS": "0.5",
    "GRADIENT_WORKER__POLL_SECONDS": "0.2",
    "GRADIENT_WORKER__SWEEP_SECONDS": "0.5",
}


@pytest.fixture
def deployment(tmp_path):
    deployment = Deployment(tmp_path / "home", **QUICK)
    yield deployment
    deployment.stop()


@pytest.fixture(params=["postgresql"])
def shared(tmp_path, postgres):
    """Over PostgreSQL: a process that is frozen while it holds SQLite's one write lock stops everybody."""
    deployment = Deployment(tmp_path / "home", GRADIENT_DATABASE__URL=postgres.new_database(), **QUICK)
    deployment.migrate()
    yield deployment
    deployment.stop()


def check_whole(deployment, job_id):
    """Everything that was promised of this job."""
    job = deployment.wait_ended(job_id)
    assert (job["state"], job["exitCode"], job["attempt"]) == ("Failed", 7, 1), job
    starts = deployment.home / "storage" / f"starts-{job_id}"
    assert starts.read_text() == "started\n", "the command ran once"
    assert deployment.raw_log(job_id) == OUTPUT
    artifacts = deployment.artifacts(job_id)
    assert artifacts["state"] == "complete"
    (file,) = artifacts["files"]
    assert (file["path"], file["sha256"]) == ("model", hashlib.sha256(b"the model").hexdigest())
    assert deployment.artifact(job_id, "model") == b"the model"
    series = deployment.request("GET", f"/jobs/{job_id}/metrics?name=loss").json()["series"]
    assert [[point["value"] for point in one["points"]] for one in series] == [[0.5]]
    wait_until(lambda: deployment.scratch() == [], "the scratch directory to go")
    assert deployment.job_processes() == []
    moves = [(event["fromState"], event["toState"]) for event in deployment.events(job_id) if event["toState"]]
    assert len(moves) == len(set(moves)), f"a move happened twice: {moves}"


@pytest.mark.parametrize("name", RUNNING)
def test_a_worker_killed_here_loses_nothing(deployment, name):
    deployment.start_api()
    doomed = deployment.start_worker(GRADIENT_FAILPOINT=name)
    job_id = deployment.submit(COMMAND)
    assert doomed.wait() == -signal.SIGKILL, doomed.said()
    deployment.start_worker()
    check_whole(deployment, job_id)


@pytest.mark.parametrize("name", RUNNING)
def test_a_worker_frozen_here_does_no_harm_when_it_wakes(shared, name):
    shared.start_api()
    zombie = shared.start_worker("zombie", GRADIENT_FAILPOINT=f"{name}:stop")
    job_id = shared.submit(COMMAND)
    wait_until(zombie.frozen, "the worker to freeze")
    shared.start_worker("heir")
    job = shared.wait_ended(job_id)
    events = shared.events(job_id)
    zombie.signal(signal.SIGCONT)
    zombie.signal(signal.SIGTERM)
    assert zombie.wait() == 0, zombie.said()
    assert shared.job(job_id) == job
    assert shared.events(job_id) == events
    check_whole(shared, job_id)


@pytest.mark.parametrize("name", SUBMITTING)
def test_an_api_killed_while_it_answers_makes_one_job(deployment, name):
    doomed = deployment.start_api(GRADIENT_FAILPOINT=name)
    with pytest.raises(Exception, match=r"disconnected|reset|refused"):
        deployment.request(
            "POST",
            "/jobs",
            retry=False,
            json={"machineType": "CPU", "command": "x"},
            headers={"Idempotency-Key": "once"},
        )
    assert doomed.wait() == -signal.SIGKILL
    deployment.start_api()
    body = {"machineType": "CPU", "command": "x"}
    answers = [deployment.request("POST", "/jobs", json=body, headers={"Idempotency-Key": "once"}) for _ in range(3)]
    assert len({answer.json()["id"] for answer in answers}) == 1
    expected = 200 if name == "submit_after_commit" else 201
    assert [answer.status_code for answer in answers] == [expected, 200, 200]
    assert len(deployment.request("GET", "/jobs").json()["jobs"]) == 1


def test_a_point_that_is_not_listed_is_refused():
    with pytest.raises(KeyError):
        failpoint("nowhere")
