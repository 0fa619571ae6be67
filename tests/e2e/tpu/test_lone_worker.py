"""The only worker of an installation is killed and never comes back: what Google has of it then, by Google's record."""

import json

import pytest
from support.deployment import TIMEOUT_SECONDS, Deployment, wait_until
from support.google.production import PROJECT
from support.google.tpu_simulator import split_times

SAVE = 'trap "echo saved >\\"$GRADIENT_ARTIFACTS_DIR/model\\"; exit 0" TERM; echo up; while :; do sleep 0.05; done'


@pytest.fixture
def service(google, tmp_path):
    assert google.nodes == []
    tpu = {
        "PROJECT": PROJECT,
        "ZONES": json.dumps(["us-west4-a"]),
        "PLACEMENT": "vm",
        "RUNNER": "process",
        "POLL_SECONDS": "0.1",
    }
    settings = {f"GRADIENT_TPU__{name}": value for name, value in tpu.items()}
    settings |= {"GRADIENT_MACHINES__SIMULATE": "false", "GRADIENT_WORKER__SWEEP_SECONDS": "0.5"}
    settings |= {"GRADIENT_WORKER__LEASE_SECONDS": "5"}
    settings |= {"GRADIENT_DOCKER__URL": f"unix://{tmp_path}/no-engine.sock"}
    times = {"vm_poll_seconds": 0.1, "probe_seconds": 60, "vm_abandoned_seconds": 8, "orphan_grace_seconds": 0}
    settings |= split_times(times | {"token_seconds": 60})[1]
    deployment = Deployment(tmp_path / "home", **settings)
    deployment.migrate()
    deployment.start_api()
    yield deployment
    deployment.stop()


@pytest.mark.faults
def test_nothing_is_left_of_a_job_whose_only_worker_is_killed(service, google):
    worker = service.start_worker(inside=("env",))
    job_id = service.submit(SAVE, machineType="TPU v5e")
    wait_until(lambda: service.raw_log(job_id) == b"up\n", "the job to run")
    worker.kill()
    wait_until(lambda: not google.nodes and not google.queued, "the VM to delete itself")
    assert any(one.startswith("DELETE /v2/") for one in google.storage.requests), "by the VM, not by a worker"
    [(begin, end)] = google.cloud.bills.values()
    assert end - begin < TIMEOUT_SECONDS
    service.start_worker("w2", inside=("env",))
    job = service.wait_ended(job_id)
    assert (job["state"], job["reason"]) == ("Error", "tpu_lost"), job["message"]
    assert service.artifact(job_id, "model") == b"saved\n"
    wait_until(lambda: google.objects("jobs/") == [], "the bucket to be empty")
    assert (google.nodes, google.queued, len(google.made())) == ([], [], 1)
