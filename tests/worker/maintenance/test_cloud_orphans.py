"""TPUs of hosts that are gone are deleted by another, one worker at a time."""

import pytest
from sqlalchemy import update
from support.google.tpu_simulator import running_simulator, tpu_settings

from core.db.database import now
from core.db.models.jobs import Job, LeaderLease
from core.jobs import lifecycle, queries
from core.jobs.cloud_resources import find_unowned
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState
from core.settings import Settings
from worker.backends.tpu.backend import TpuBackend
from worker.backends.tpu.storage.region_bucket import open_bucket
from worker.context import WorkerContext
from worker.database_resource_inventory import DatabaseResourceInventory
from worker.maintenance.cloud_orphans import CloudSweep
from worker.maintenance.job_sweep import Sweep


@pytest.fixture
def simulator():
    with running_simulator() as running:
        yield running


@pytest.fixture
def host(database, simulator, tmp_path):
    settings = Settings(home=tmp_path / "home", tpu=tpu_settings(simulator))
    return WorkerContext.open(settings, database, worker_name="w1", hostname="here")


@pytest.fixture
def lost(database, submit, simulator):
    """A job on a machine that is gone, with its TPU."""
    submit(machine="TPU")
    with database.write() as session:
        job = claims.claim(session, WorkerOffer("other", "gone", ("process",)))
    name = f"gj-{job.id}-1"
    inventory = DatabaseResourceInventory(database, "gone")
    inventory.record_intent("tpu_node", f"us-central1-b/{name}", job_id=job.id, attempt=1)
    labels = {"gradient-jobs": inventory.installation(), "gradient-job": job.id, "gradient-attempt": "1"}
    simulator.cloud.create_node("projects/simulated/locations/us-central1-b", name, {"labels": labels})
    return job


def give_up(database, job):
    with database.write() as session:
        lifecycle.fail_lost(session, queries.get_row(session, job.id), "worker_lost", "15 minutes")


def test_what_a_lost_host_had_is_deleted(host, database, lost, simulator):
    sweep = CloudSweep(host)
    assert sweep.run() == {"tpus": 0}, "it may come back"
    assert len(simulator.cloud.remaining_resources()[0]) == 1
    give_up(database, lost)
    assert sweep.run() == {"tpus": 1}
    assert simulator.cloud.remaining_resources() == ([], [])
    assert sweep.run() == {"tpus": 0}
    with database.read() as session:
        assert queries.get_row(session, lost.id).attempt == 1


def test_it_is_known_to_be_gone_when_it_is_not_found_any_more(host, database, lost):
    give_up(database, lost)
    for _ in range(2):
        CloudSweep(host).run()
    assert host.resource_inventory.list_orphaned() == []


def test_what_is_in_the_cloud_and_in_no_record_is_deleted_unless_a_worker_runs_its_attempt(
    host, database, lost, simulator
):
    inventory = host.resource_inventory
    for entry in inventory.list_of_attempt(lost.id, 1):
        inventory.record_deletion(entry, gone=True)
    assert CloudSweep(host).run() == {"tpus": 0}
    give_up(database, lost)
    assert CloudSweep(host).run() == {"tpus": 1}
    assert simulator.cloud.remaining_resources() == ([], [])


def test_what_belongs_to_others_is_kept_and_told_until_it_is_gone(host, database, simulator):
    parent, labels = "projects/simulated/locations/us-west4-a", {"gradient-jobs": "gx", "gradient-job": "j1"}
    simulator.cloud.create_node(parent, "gj-theirs", {"labels": labels})
    simulator.cloud.create_node(parent, "unlabelled", {})
    assert CloudSweep(host).run() == {"tpus": 0}
    with database.read() as session:
        assert find_unowned(session) == {"us-west4-a/gj-theirs": "the installation gx"}
    simulator.cloud.delete_node(f"{parent}/nodes/gj-theirs")
    CloudSweep(host).run()
    with database.read() as session:
        assert find_unowned(session) == {}


def test_one_worker_at_a_time_sweeps(host, database, lost):
    give_up(database, lost)
    other = WorkerContext.open(host.settings, database, worker_name="w2", hostname="there")
    assert CloudSweep(other).run() == {"tpus": 1}
    assert CloudSweep(host).run() == {}
    with database.write() as session:
        session.execute(update(LeaderLease).values(until=now(-1)))
    assert CloudSweep(host).run() == {"tpus": 0}


def test_what_could_not_be_fetched_of_a_job_stays_in_the_bucket(host, database, lost, monkeypatch):
    def sweep(state, artifacts_state):
        with database.write() as session:
            session.execute(update(Job).values(state=state, artifacts_state=artifacts_state))
        CloudSweep(host).run()
        return asked.pop()

    asked = []
    monkeypatch.setattr(TpuBackend, "remove_orphans", lambda _, __, is_done: asked.append(is_done(lost.id)) or 0)
    assert not sweep(JobState.RUNNING, "none")
    assert all(sweep(JobState.FAILED, state) for state in ("none", "complete", "removed"))
    assert not any(sweep(JobState.FAILED, state) for state in ("partial", "failed"))
    with database.write() as session:
        started = {"state": JobState.RUNNING, "started_at": now(), "handle": {"name": "n"}, "artifacts_state": "none"}
        session.execute(update(Job).values(**started))
    give_up(database, lost)
    CloudSweep(host).run()
    assert asked == [False], "no worker has fetched anything"


def test_what_a_job_that_was_given_up_left_in_the_bucket_stays_there_when_its_host_returns(
    database, submit, simulator, gcs, tmp_path
):
    settings = Settings(home=tmp_path / "home", tpu=tpu_settings(simulator), gcs=gcs.settings)
    host = WorkerContext.open(settings, database, worker_name="w1", hostname="here")
    submit(machine="TPU")
    with database.write() as session:
        job = lifecycle.mark_running(session, claims.claim(session, WorkerOffer("w1", "here", ("process",))), {})
    host.scratch(job.id, 1).make(host.artifacts)
    name = f"gj-{job.id}-1"
    host.resource_inventory.record_intent("tpu_node", f"us-central1-b/{name}", job_id=job.id, attempt=1)
    simulator.cloud.create_node("projects/simulated/locations/us-central1-b", name, {})
    bucket = open_bucket(settings, "us-central1")
    bucket.prepare(job.id)
    gcs.put_object(bucket.name, f"jobs/{job.id}/model/final", b"weights")
    give_up(database, job)
    assert Sweep(host).run(set())["scratch"] == 1
    assert simulator.cloud.remaining_resources() == ([], [])
    assert gcs.read_objects(bucket.name)[f"jobs/{job.id}/model/final"] == b"weights"
