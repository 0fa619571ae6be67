"""The periodic repair, on a host without a supervisor."""

import pytest
from sqlalchemy import update

from core.db import now
from core.jobs import lifecycle, queries
from core.jobs.models import Job, Worker
from core.jobs.states import JobState
from core.settings import Settings
from worker.host import Host
from worker.sweep import HOST_GONE_SECONDS, Sweep
from worker.workspace import scratches


@pytest.fixture
def host(database, tmp_path):
    settings = Settings(home=tmp_path / "home")
    settings.worker.lost_after_seconds = 0.0
    return Host.open(settings, database, name="w1", host="here")


def claimed(database, submit, host, *, silent=0.0, **spec):
    submit(**spec)
    with database.write() as session:
        job = lifecycle.claim(session, "other", host, ["mock"])
        session.execute(update(Job).where(Job.id == job.id).values(heartbeat_at=now(-silent)))
    return job


def state(database, job):
    with database.read() as session:
        return queries.row(session, job.id).state


def test_a_job_on_a_silent_host_is_given_up(host, database, submit):
    job = claimed(database, submit, "gone", silent=1000)
    assert Sweep(host).run(set())["lost_jobs"] == 1
    assert state(database, job) is JobState.FAILED
    with database.read() as session:
        assert queries.row(session, job.id).reason == "worker_lost"


def test_a_silent_job_of_this_host_is_left_to_adoption(host, database, submit):
    job = claimed(database, submit, "here", silent=1000)
    assert Sweep(host).run(set())["lost_jobs"] == 0
    assert state(database, job) is JobState.STARTING


def test_nobody_is_given_up_just_after_the_start_or_an_outage(host, database, submit):
    claimed(database, submit, "gone", silent=10_000)
    host.settings.worker.lost_after_seconds = 600.0
    sweep = Sweep(host)
    assert sweep.run(set())["lost_jobs"] == 0
    sweep.database_was_away()
    assert sweep.run(set())["lost_jobs"] == 0


def test_scratch_of_ended_attempts_is_removed_and_of_unknown_jobs_kept(host, database, submit):
    alive = claimed(database, submit, "here")
    held = claimed(database, submit, "here")
    for job_id, attempt in [(alive.id, 1), (alive.id, 0), (held.id, 1), ("jgone", 1)]:
        host.scratch(job_id, attempt).make(host.artifacts)
    assert Sweep(host).run({held.id})["scratch"] == 1
    assert sorted(scratches(host.attempts)) == sorted([(alive.id, 1), (held.id, 1), ("jgone", 1)])


def test_scratch_of_another_host_is_its_own_to_clear_up_while_it_lives(host, database, submit):
    job = claimed(database, submit, "there", silent=1000)
    host.scratch(job.id, 1).make(host.artifacts)
    with database.write() as session:
        lifecycle.register_worker(session, "other", "there", boot_id="b", backends=["mock"], slots=1)
    swept = Sweep(host).run(set())
    assert (swept["lost_jobs"], swept["scratch"]) == (1, 0)
    with database.write() as session:
        session.execute(update(Worker).values(seen_at=now(-HOST_GONE_SECONDS - 1)))
    assert Sweep(host).run(set())["scratch"] == 1
    assert list(scratches(host.attempts)) == []


def test_files_that_are_no_scratch_are_left_alone(host, database):
    (host.attempts / "notes").mkdir(parents=True)
    Sweep(host).run(set())
    assert (host.attempts / "notes").is_dir()
    assert database is host.database


def test_what_a_deleted_job_left_is_removed_and_its_record_stays(host, database, submit):
    job = submit()
    with host.logs.open_writer(job.id, 1) as writer:
        writer.append(b"hello\n", 0)
    with database.write() as session:
        lifecycle.delete(session, job.id)
    assert Sweep(host).run(set())["deleted_jobs"] == 1
    assert host.logs.reader(job.id).size == 0
    assert state(database, job) is JobState.CANCELLED
    assert Sweep(host).run(set())["deleted_jobs"] == 0


def test_scratch_is_kept_for_who_asks_for_it(host, database):
    host.settings.worker.keep_scratch = True
    host.scratch("jgone", 1).make(host.artifacts)
    assert Sweep(host).run(set())["scratch"] == 0
    assert scratches(host.attempts) == [("jgone", 1)]
    assert database is host.database
