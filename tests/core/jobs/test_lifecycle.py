from datetime import timedelta

import pytest
from sqlalchemy import func, select, update

from core.db.database import now, on_commit
from core.db.models.jobs import Attempt, Job
from core.db.prepared import Prepared
from core.errors import LeaseLost
from core.jobs import guarded_updates, lifecycle, queries
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState
from core.jobs.tracking import job_notes

HANDLE = {"version": 1, "name": "x"}


def claim(database, worker="w1", host="h1"):
    with database.write() as session:
        return claims.claim(session, WorkerOffer(worker, host, ("process",)))


def move(database, function, *arguments, **keywords):
    with database.write() as session:
        return function(session, *arguments, **keywords)


def silence(database, job, seconds):
    with database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(heartbeat_at=now(-seconds)))


def events(database, job):
    with database.read() as session:
        return [(event.kind, event.from_state, event.to_state) for event in queries.events(session, job.id)]


def test_a_start_is_held_afresh_under_its_lease_with_a_young_heartbeat(database, submit):
    submit()
    job = claim(database)

    def is_held():
        with database.read() as session:
            return lifecycle.is_held(session, job, 10)

    assert is_held()
    silence(database, job, 11)
    assert not is_held()
    move(database, lifecycle.confirm, job)
    assert is_held()
    with database.write() as session:
        session.execute(update(Job).values(lease=Job.lease + 1))
    assert not is_held()


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b"])
def test_a_detail_that_a_database_refuses_is_stored_without_that(database, submit, text):
    """A job's machine can report anything, on any backend."""
    submit(max_attempts=2)
    job = claim(database)
    for _ in range(2):
        job = move(database, lifecycle.set_phase, job, "provisioning", text)
    assert job.phase_detail in {"a\N{REPLACEMENT CHARACTER}b", "a?b"}
    move(database, job_notes.add, job, text)
    job = move(database, lifecycle.mark_finishing, job, "launch_failed", detail=text)
    assert job.reason_detail in {"a\N{REPLACEMENT CHARACTER}b", "a?b"}
    job = move(database, lifecycle.finish, job, artifacts_state="none")
    with database.read() as session:
        kinds = [one.kind for one in queries.events(session, job.id) if one.detail and text not in one.detail]
        (attempt,) = queries.attempts(session, job.id)
    assert kinds.count("phase") == 1
    assert attempt.reason_detail in {"a\N{REPLACEMENT CHARACTER}b", "a?b"}


def test_a_stale_lease_moves_nothing(database, submit):
    submit()
    old = claim(database)
    silence(database, old, 120)
    (adopted,) = move(database, lifecycle.adopt, "w2", "h1", backends=["process"], stale_seconds=60)
    assert (adopted.lease, adopted.attempt, adopted.worker) == (2, 1, "w2")
    for function, arguments in [
        (lifecycle.confirm, ()),
        (lifecycle.set_phase, ("pulling",)),
        (lifecycle.mark_running, (HANDLE,)),
        (lifecycle.mark_finishing, ("completed",)),
    ]:
        with pytest.raises(LeaseLost):
            move(database, function, old, *arguments)
    assert move(database, lifecycle.mark_running, adopted, HANDLE).state is JobState.RUNNING
    assert [kind for kind, _, _ in events(database, old)] == ["submitted", "claimed", "adopted", "started"]


def test_only_silent_jobs_of_the_same_host_are_adopted(database, submit):
    submit()
    job = claim(database, "w1", "h1")
    assert move(database, lifecycle.adopt, "w2", "h1", backends=["process"], stale_seconds=60) == []
    silence(database, job, 120)
    assert move(database, lifecycle.adopt, "w2", "h2", backends=["process"], stale_seconds=60) == []
    assert move(database, lifecycle.adopt, "w2", "h1", backends=["process"], stale_seconds=60, held=[job.id]) == []
    assert [j.id for j in move(database, lifecycle.adopt, "w2", "h1", backends=["process"], stale_seconds=60)] == [
        job.id
    ]


def test_a_worker_goes_on_with_its_jobs_of_a_backend_that_was_switched_off(database, submit):
    submit()
    job = claim(database)
    silence(database, job, 120)
    assert move(database, lifecycle.adopt, "w2", "h1", backends=["docker"], stale_seconds=60) == []
    (adopted,) = move(database, lifecycle.adopt, "w1", "h1", backends=["docker"], stale_seconds=60)
    assert (adopted.id, adopted.lease) == (job.id, 2)


def test_a_stop_ends_the_collection_only_if_it_was_made_after_the_end(database, submit):
    """By the order of both, and not by their times: the clock was set back in between."""
    submit()
    job = move(database, lifecycle.mark_running, claim(database), HANDLE)
    move(database, lifecycle.request_stop, job.id)
    job = move(database, lifecycle.mark_finishing, job, "stopped_by_user", exit_code=0)
    with database.write() as session:
        session.execute(update(Job).values(ended_at=now(-3600)))
    assert not move(database, lifecycle.stop_follows_end, job)
    for _ in range(2):
        move(database, lifecycle.request_stop, job.id)
        assert move(database, lifecycle.stop_follows_end, job)
    assert [kind for kind, _, _ in events(database, job)].count("stop_requested") == 2, "a repetition adds nothing"


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    ("reason", "expected"), [("engine_unavailable", JobState.CANCELLED), ("exit_nonzero", JobState.FAILED)]
)
def test_a_job_that_was_to_stop_is_cancelled_if_the_machine_fails_it_first(database, submit, reason, expected, late):
    submit(max_attempts=3)
    job = claim(database)
    if not late:
        move(database, lifecycle.request_stop, job.id)
    job = move(database, lifecycle.mark_finishing, job, reason)
    if late:
        move(database, lifecycle.request_stop, job.id)
    assert move(database, lifecycle.finish, job, artifacts_state="none").state is expected


def test_statements_of_stops_and_of_lost_jobs_are_built_once(database, submit, monkeypatch):
    built = []

    def build(statement):
        built.append(statement)
        return Prepared(statement)

    def end_jobs():
        move(database, lifecycle.request_stop, submit().id)
        submit()
        job = claim(database)
        move(database, lifecycle.request_stop, job.id)
        move(database, lifecycle.fail_lost, job, "process_lost")

    monkeypatch.setattr(guarded_updates, "Prepared", build)
    end_jobs()
    built.clear()
    end_jobs()
    assert built == []


def test_a_spec_that_would_be_refused_today_can_still_be_read(submit):
    job = submit(name="fine")
    job.spec_json = job.spec_json | {"name": "two\nlines", "field of a later release": 1}
    del job.spec_json["priority"]
    assert (job.spec.name, job.spec.priority, job.spec.tags) == ("two\nlines", 50, ())


def test_on_commit_runs_after_the_commit_and_never_after_a_rollback(database, submit):
    seen = []

    def count():
        with database.read() as session:
            seen.append(session.scalar(select(func.count(Attempt.job_id))))

    submit()
    with database.write() as session:
        claims.claim(session, WorkerOffer("w", "h", ("process",)))
        on_commit(session, count)
        assert seen == []
    assert seen == [1]

    def fail():
        with database.write() as session:
            on_commit(session, count)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert seen == [1]


def attempt_that_ends(database, reason, *, began=True):
    """The next job after an attempt that ended like this; its pause before the next is over."""
    job = claim(database)
    if began:
        job = move(database, lifecycle.mark_running, job, HANDLE)
    job = move(database, lifecycle.mark_finishing, job, reason)
    job = move(database, lifecycle.finish, job, artifacts_state="none")
    with database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(run_after=None))
    return job


def test_a_fault_of_the_machine_uses_up_no_attempt_of_the_users(database, submit):
    submit(max_attempts=2)
    for fault in range(1, lifecycle.MAX_MACHINE_FAULTS + 1):
        job = attempt_that_ends(database, "process_lost")
        assert (job.state, job.machine_faults, job.reason) == (JobState.QUEUED, fault, "retrying")
        assert "The job was not at fault" in job.reason_detail
    job = attempt_that_ends(database, "exit_nonzero")
    assert (job.state, job.reason_detail.startswith("attempt 1 of 2 ended")) == (JobState.QUEUED, True)
    job = attempt_that_ends(database, "exit_nonzero")
    assert (job.state, job.attempt) == (JobState.FAILED, lifecycle.MAX_MACHINE_FAULTS + 2)


def clock(database):
    with database.read() as session:
        return session.scalar(select(now()))


def test_the_pause_before_the_next_attempt_grows(database, submit):
    submit(max_attempts=4)
    pauses = []
    for _ in range(3):
        job = claim(database)
        job = move(database, lifecycle.mark_running, job, HANDLE)
        job = move(database, lifecycle.mark_finishing, job, "exit_nonzero", exit_code=1)
        before = clock(database)
        job = move(database, lifecycle.finish, job, artifacts_state="none")
        pauses.append((job.run_after - clock(database), job.run_after - before))
        with database.write() as session:
            session.execute(update(Job).values(run_after=None))
    for (least, most), times in zip(pauses, (1, 2, 4), strict=True):
        assert least <= timedelta(seconds=times * lifecycle.RETRY_FIRST_SECONDS) <= most


def test_a_stop_that_comes_while_outputs_are_completed_is_not_forgotten(database, submit):
    submit(max_attempts=3)
    job = claim(database)
    job = move(database, lifecycle.mark_running, job, HANDLE)
    job = move(database, lifecycle.mark_finishing, job, "exit_nonzero", exit_code=1)
    move(database, lifecycle.request_stop, job.id)
    job = move(database, lifecycle.finish, job, artifacts_state="none")  # by a row that is older than the stop request
    assert job.state is JobState.FAILED
