"""Options of jobs on a Slurm cluster: accepted if its worker has what they need, and refused with the reason if not."""

import pytest
from support.live_service import make_job_body
from support.slurm_cluster import CLUSTER_TYPE

from core.catalogue.backends import containers_offer
from core.jobs.scheduling import workers
from core.jobs.scheduling.claims import WorkerOffer
from core.settings.slurm import SlurmSettings
from core.settings.worker import MachineSettings


@pytest.fixture
def settings(settings, tmp_path):
    file = tmp_path / "machines.toml"
    file.write_text(CLUSTER_TYPE)
    return settings.model_copy(update={"machines": MachineSettings(file=file), "slurm": SlurmSettings(enabled=True)})


@pytest.fixture
def submit(client, database):
    def submit(offers=(), **fields):
        if offers:
            with database.write() as session:
                workers.register(session, WorkerOffer("w", "h", offers), boot_id="b", slots=1)
        return client.post("/jobs", json=make_job_body(machineType="cluster", **fields))

    return submit


WITHOUT, WITH = ("slurm",), ("slurm", containers_offer("slurm"))


@pytest.mark.parametrize(
    ("offers", "fields", "status", "field", "words"),
    [
        ((), {"container": "debian:12"}, 201, None, ""),
        (WITH, {"container": "debian:12", "workingDir": "/opt"}, 201, None, ""),
        (WITH, {"python": "3.12"}, 201, None, ""),
        (WITHOUT, {"container": "debian:12"}, 400, "container", "neither Apptainer nor Singularity nor Pyxis"),
        (WITHOUT, {}, 201, None, ""),
        (WITH, {"container": "debian:12", "python": "3.12"}, 400, "python", "in containers"),
        (WITH, {"container": "debian:12", "user": "1:1"}, 400, "user", "the worker's user"),
        (WITH, {"workingDir": "/opt"}, 400, "workingDir", "without a container"),
        ((), {"network": "none"}, 400, "network", "Leave network out"),
        ((), {"sharedMemMb": 64}, 400, "sharedMemMb", "Leave sharedMemMb out"),
        ((), {"nodes": 2}, 201, None, ""),
        ((), {"nodes": 2, "array": "0-1"}, 400, "array", "cannot have nodes"),
        ((), {"timeLimit": 3601}, 400, "timeLimit", "3,600 seconds at most"),
        ((), {"timeLimit": 3600, "cpus": 1000, "memoryMb": 9_000_000}, 201, None, ""),
        (WITHOUT, {"cpus": 1000, "memoryMb": 9_000_000}, 201, None, ""),
    ],
)
def test_what_can_be_told_is_told_at_submission(submit, offers, fields, status, field, words):
    answer = submit(offers, **fields)
    assert answer.status_code == status, answer.text
    if status == 400:
        error = answer.json()["error"]
        assert (error["field"], words in error["message"]) == (field, True), error


def test_nodes_are_one_job_which_a_clone_on_another_machine_cannot_be(submit, client):
    job = submit(nodes=2, timeLimit=60).json()
    assert (job["nodes"], job["arrayId"], job["slurm"]) == (2, None, None)
    clone = client.post(f"/jobs/{job['id']}/clone").json()
    assert (clone["nodes"], clone["arrayId"]) == (2, None)
    array = client.post("/jobs", json=make_job_body(machineType="CPU", nodes=2)).json()["arrayId"]
    for cloned, machine_type in ((job["id"], "CPU"), (array, "cluster")):
        refused = client.post(f"/jobs/{cloned}/clone", json={"machineType": machine_type})
        assert "a clone cannot be of the other kind" in refused.json()["error"]["message"]
    planned = client.post("/jobs", params={"dryRun": "true"}, json=make_job_body(machineType="cluster", nodes=3))
    assert (planned.status_code, planned.json()["job"]["nodes"]) == (200, 3)


def test_a_clone_keeps_its_container(submit, client):
    job = submit(WITH, container="debian:12").json()
    clone = client.post(f"/jobs/{job['id']}/clone").json()
    assert (clone["backend"], clone["container"]) == ("slurm", "debian:12")
    refused = client.post(f"/jobs/{job['id']}/clone", json={"python": "3.12"})
    assert refused.status_code in {400, 422}
