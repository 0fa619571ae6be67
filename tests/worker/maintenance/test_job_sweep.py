"""The periodic repair, on a host without a supervisor."""

import os
import subprocess
from types import SimpleNamespace

import pytest
from sqlalchemy import delete, select, update
from support.deployment import wait_until

from core.db.database import now
from core.db.models.jobs import GpuAllocation, Job, LeaderLease, Outbox, Worker
from core.errors import StoreUnavailable
from core.jobs import lifecycle, queries
from core.jobs.scheduling import claims, shared_repairs, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState
from core.settings import Settings
from core.storage import retention
from core.storage.retention import OutputKind
from worker.attempt.scratch import Scratch, list_scratch_folders
from worker.context import WorkerContext
from worker.maintenance.job_sweep import HOST_LOST_SECONDS, Sweep


@pytest.fixture
def host(database, tmp_path):
    settings = Settings(home=tmp_path / "home")
    settings.worker.lost_after_seconds = settings.worker.lease_seconds = 0.0
    return WorkerContext.open(settings, database, worker_name="w1", hostname="here")


def claimed(database, submit, host, *, silent=0.0, **spec):
    submit(**spec)
    with database.write() as session:
        job = claims.claim(session, WorkerOffer("other", host, ("process",)))
        session.execute(update(Job).where(Job.id == job.id).values(heartbeat_at=now(-silent)))
    return job


def begun(database, job, *, silent):
    with database.write() as session:
        job = lifecycle.mark_running(session, job, {"version": 1, "name": "x"})
        session.execute(update(Job).where(Job.id == job.id).values(heartbeat_at=now(-silent)))
    return job


def state(database, job):
    with database.read() as session:
        return queries.get_row(session, job.id).state


def test_a_job_on_a_silent_host_is_given_up(host, database, submit):
    running = begun(database, claimed(database, submit, "gone"), silent=1000)
    assert Sweep(host).run(set())["lost_jobs"] == 1
    assert state(database, running) is JobState.FAILED
    with database.read() as session:
        assert queries.get_row(session, running.id).reason == "worker_lost"


def test_a_job_in_a_queue_of_its_own_outlives_a_silent_host_until_it_is_to_stop(host, database, submit):
    """Slurm runs it on without a worker: an attempt elsewhere would be a second one."""
    running = begun(database, claimed(database, submit, "gone"), silent=1000)
    with database.write() as session:
        session.execute(update(Job).where(Job.id == running.id).values(backend="slurm"))
    assert Sweep(host).run(set())["lost_jobs"] == 0
    assert state(database, running) is JobState.RUNNING
    with database.write() as session:
        session.execute(update(Job).where(Job.id == running.id).values(stop_requested_at=now()))
    assert Sweep(host).run(set())["lost_jobs"] == 1


def test_a_job_that_never_began_on_a_silent_host_waits_for_another(host, database, submit):
    job = claimed(database, submit, "gone", silent=1000)
    assert Sweep(host).run(set())["lost_jobs"] == 1
    with database.read() as session:
        row = queries.get_row(session, job.id)
    assert (row.state, row.reason, row.machine_faults) == (JobState.QUEUED, "retrying", 1)


def test_only_one_worker_at_a_time_repairs_what_is_everybodys(host, database, submit):
    claimed(database, submit, "gone", silent=1000)
    other = WorkerContext.open(host.settings, database, worker_name="w2", hostname="elsewhere")
    assert Sweep(other).run(set()).get("lost_jobs") is not None
    assert Sweep(host).run(set()).get("lost_jobs") is None, "it is the other's turn"
    with database.write() as session:
        session.execute(update(LeaderLease).values(until=now(-1)))
    assert Sweep(host).run(set()).get("lost_jobs") is not None, "the other one did not come back"


def test_a_job_that_nobody_took_is_announced_again(host, database, submit):
    waiting = [submit(machine=machine) for machine in ("CPU", "CPU", "V100")]
    with database.write() as session:
        session.execute(delete(Outbox))
    sweep = Sweep(host)
    assert sweep.run(set())["rung_again"] == 0
    with database.write() as session:
        session.execute(update(Job).values(created_at=now(-60)))
    assert sweep.run(set())["rung_again"] == 2, "once a machine type"
    with database.read() as session:
        assert set(session.scalars(select(Outbox.job_id))) == {waiting[0].id, waiting[2].id}
    assert sweep.run(set())["rung_again"] == 0, "these are still to be sent"


def test_gpus_that_no_job_holds_are_free_again(host, database, submit):
    job = submit(machine="V100")
    with database.write() as session:
        claims.claim(session, WorkerOffer("other", "here", ("process",), gpus=("0",)))
        session.execute(update(Job).where(Job.id == job.id).values(state=JobState.FAILED))
    assert Sweep(host).run(set())["gpus"] == 1
    with database.read() as session:
        assert session.scalar(select(GpuAllocation.gpu)) is None


def test_nobody_is_given_up_just_after_the_start_or_an_outage(host, database, submit):
    claimed(database, submit, "gone", silent=10_000)
    host.settings.worker.lost_after_seconds = 600.0
    sweep = Sweep(host)
    assert sweep.run(set())["lost_jobs"] == 0
    sweep.defer_lost_detection()
    assert sweep.run(set())["lost_jobs"] == 0


def test_nobody_is_given_up_because_the_clock_was_set_forward(host, database, submit, monkeypatch):
    """Then every last heartbeat seems old, and the next one comes as ever."""
    job, current = claimed(database, submit, "there", silent=1000), [0.0]
    monkeypatch.setattr(shared_repairs, "time", SimpleNamespace(monotonic=lambda: current[0]))
    host.settings.worker.lease_seconds = 60.0
    sweep = Sweep(host)
    assert sweep.run(set())["lost_jobs"] == 0
    with database.write() as session:
        session.execute(update(Job).values(heartbeat_at=now(-999)))
    current[0] = 30.0
    assert sweep.run(set())["lost_jobs"] == 0
    current[0] = 49.0
    assert sweep.run(set())["lost_jobs"] == 0
    current[0] = 50.0
    assert sweep.run(set())["lost_jobs"] == 1, "none came since"
    assert state(database, job) is JobState.QUEUED


@pytest.fixture
def run_attempt(host):
    """Starts a process of an attempt, with its scratch folder; it ends with the test."""
    started = []

    def run(job_id, attempt):
        host.scratch(job_id, attempt).make(host.artifacts)
        env = os.environ | {"GRADIENT_JOB_ID": job_id, "GRADIENT_ATTEMPT": str(attempt)}
        started.append(subprocess.Popen(["sleep", "60"], env=env, start_new_session=True))
        name = (job_id, attempt)
        wait_until(lambda: any((one["job_id"], one["attempt"]) == name for one in owned()), "the process to be found")
        return started[-1]

    def owned():
        return host.backend("process").owned()

    host.settings.process.sandbox = "off"
    yield run
    for process in started:
        process.kill()
        process.wait()


@pytest.mark.parametrize("held", [True, False], ids=["held", "claimed since"])
def test_an_attempt_that_nobody_holds_ends_although_its_job_runs(host, database, submit, run_attempt, held):
    """As after a restore: the database knows only of the next attempt, which this worker or another one runs."""
    job = claimed(database, submit, "here")
    with database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(attempt=2))
    before, current = run_attempt(job.id, 1), run_attempt(job.id, 2)
    assert Sweep(host).run({(job.id, 2)} if held else set())["scratch"] == 1
    assert before.wait(60) == -9
    assert current.poll() is None
    assert list_scratch_folders(host.scratch_root) == [(job.id, 2)]


def test_an_attempt_that_changes_its_worker_is_left_alone(host, database, submit, run_attempt):
    """Also by a worker whose list of held attempts is older than the adoption."""
    job = begun(database, claimed(database, submit, "here"), silent=1000)
    process = run_attempt(job.id, 1)
    with database.write() as session:
        assert lifecycle.adopt(session, "w2", "here", backends=["process"], stale_seconds=60)
    for held in (set(), {(job.id, 0)}):
        assert Sweep(host).run(held)["scratch"] == 0
    assert process.poll() is None
    assert host.scratch(job.id, 1).root.is_dir()


def test_an_attempt_that_its_thread_is_about_to_clean_up_is_left_to_it(host, database, submit):
    job = begun(database, claimed(database, submit, "here"), silent=0)
    host.scratch(job.id, 1).make(host.artifacts)
    with database.write() as session:
        lifecycle.fail_lost(session, job, "worker_lost")
    assert Sweep(host).run({(job.id, 1)})["scratch"] == 0
    assert Sweep(host).run(set())["scratch"] == 1


def test_an_attempt_that_the_next_claim_takes_up_is_left_alone(host, database, submit, run_attempt):
    """After a restore without `reconcile`, the job waits, and its next claim has the number of this attempt."""
    job = submit()
    process = run_attempt(job.id, 1)
    assert Sweep(host).run(set())["scratch"] == 0
    assert process.poll() is None
    with database.write() as session:
        lifecycle.request_stop(session, job.id)
    assert Sweep(host).run(set())["scratch"] == 1
    assert process.wait(60) == -9


def test_scratch_of_another_host_is_its_own_to_clear_up_while_it_lives(host, database, submit):
    job = claimed(database, submit, "there", silent=1000)
    host.scratch(job.id, 1).make(host.artifacts)
    with database.write() as session:
        workers.register(session, WorkerOffer("other", "there", ("process",)), boot_id="b", slots=1)
    swept = Sweep(host).run(set())
    assert (swept["lost_jobs"], swept["scratch"]) == (1, 0)
    with database.write() as session:
        session.execute(update(Worker).values(seen_at=now(-HOST_LOST_SECONDS - 1)))
    assert Sweep(host).run(set())["scratch"] == 1
    assert list(list_scratch_folders(host.scratch_root)) == []


@pytest.mark.parametrize("kind", OutputKind)
def test_what_a_deleted_job_still_has_is_removed_if_a_part_was_removed_before(host, database, submit, kind):
    job = submit()
    with host.logs.open_writer(job.id, 1) as writer:
        writer.append(b"hello\n", 0)
    (tmp := host.scratch(job.id, 1).root).mkdir(parents=True)
    (tmp / "model.bin").write_bytes(b"x")
    host.artifacts.close(job.id, 1, tmp)
    with database.write() as session:
        lifecycle.request_stop(session, job.id)
        retention.mark_expired(session, kind, [job.id], "on request", left=[job.id])
        lifecycle.delete(session, job.id)
    assert Sweep(host).run(set())["deleted_jobs"] == 1
    assert host.logs.reader(job.id).size == 0
    assert host.artifacts.list(job.id, 1).files == ()
    assert Sweep(host).run(set())["deleted_jobs"] == 0


def test_outputs_that_cannot_be_removed_hold_up_no_other_repair(host, database, submit, monkeypatch):
    lost, jobs = claimed(database, submit, "gone", silent=1000), [submit() for _ in range(2)]
    with database.write() as session:
        for job in jobs:
            lifecycle.delete(session, job.id)
    remove, refused = host.artifacts.remove, []

    def refuse(job_id):
        if job_id == jobs[0].id:
            refused.append(job_id)
            raise StoreUnavailable("Cloud Storage: removing failed: 403 the object is under a retention policy")
        remove(job_id)

    monkeypatch.setattr(host.artifacts, "remove", refuse)
    sweep = Sweep(host)
    swept = sweep.run(set())
    assert (swept["deleted_jobs"], swept["lost_jobs"]) == (1, 1)
    assert sweep.run(set())["deleted_jobs"] == 0
    assert len(refused) == 1, "it is tried again an hour later"
    assert state(database, lost) is JobState.QUEUED
    monkeypatch.undo()
    assert Sweep(host).run(set())["deleted_jobs"] == 1


def test_a_worker_without_the_services_folders_leaves_deletions_to_one_that_has_them(host, database, submit, tmp_path):
    settings = Settings(home=tmp_path / "far")
    settings.worker.service_url = "http://127.0.0.1:9"
    far = WorkerContext.open(settings, database, worker_name="far", hostname="elsewhere")
    deleted, ended = submit(), claimed(database, submit, "elsewhere")
    far.scratch(ended.id, 1).make(far.artifacts)
    (far.scratch(ended.id, 1).artifacts / "model").write_bytes(b"x")
    with pytest.raises(StoreUnavailable):
        far.artifacts.sync(ended.id, 1, far.scratch(ended.id, 1).artifacts)
    staged = far.artifacts.folder(ended.id, 1)
    assert (staged / "model").exists()
    with database.write() as session:
        lifecycle.delete(session, deleted.id)
        lifecycle.fail_lost(session, ended, "worker_lost")
    swept = Sweep(far).run(set())
    assert (swept["scratch"], swept.get("deleted_jobs"), swept.get("lost_jobs")) == (1, None, None)
    assert not staged.exists(), "nothing is left of what could not be sent"
    assert Sweep(host).run(set())["deleted_jobs"] == 1


def test_a_scratch_that_cannot_be_removed_holds_up_no_other_repair(database, submit, host, monkeypatch):
    job = begun(database, claimed(database, submit, "here"), silent=60)
    with database.write() as session:
        lifecycle.fail_lost(session, job, "worker_lost")
    scratch = host.scratch(job.id, job.attempt)
    scratch.control.mkdir(parents=True)

    def refuse(_):
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(Scratch, "remove", refuse)
    assert Sweep(host).run(set())["scratch"] == 0
    monkeypatch.undo()
    assert Sweep(host).run(set())["scratch"] == 1
