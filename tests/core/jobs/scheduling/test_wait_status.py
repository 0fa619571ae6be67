"""Reasons why jobs wait, their precedence, and the estimated start."""

import pytest
from sqlalchemy import delete, event, insert, select, text, update

from core.db.database import now
from core.db.models.jobs import Event, GpuAllocation, Job, Project, Worker
from core.jobs.scheduling import wait_status as wait_status_module
from core.jobs.scheduling import workers
from core.jobs.scheduling.wait_status import wait_status, wait_statuses


@pytest.fixture
def add_worker(database):
    """Inserts a worker."""

    def add_worker(name="w1", *, seen=0, drained=False, **offered):
        values = {"host": f"host-{name}", "boot_id": "b", "backends": ["process"], "slots": 1} | offered
        with database.write() as session:
            drained_at = now() if drained else None
            session.execute(
                insert(Worker).values(
                    name=name, started_at=now(-3600), seen_at=now(-seen), drained_at=drained_at, **values
                )
            )

    return add_worker


@pytest.fixture
def change(database):
    """Writes to a job's row what others would."""

    def change(job, **values):
        with database.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(**values))

    return change


@pytest.fixture
def runs(change):
    """Has a job run on a worker for some seconds."""

    def runs(job, elapsed=0, worker="w1", **values):
        change(job, state="running", worker=worker, host=f"host-{worker}", started_at=now(-elapsed), **values)

    return runs


@pytest.fixture
def ended(database, submit):
    """Leaves a history of jobs that ran for so many seconds and ended so long ago."""

    def ended(*durations, ago=1000, **values):
        like = submit()
        columns = {column.key: getattr(like, column.key) for column in Job.__mapper__.column_attrs}
        del columns["seq"]
        with database.write() as session:
            session.execute(delete(Event).where(Event.job_id == like.id))
            session.execute(delete(Job).where(Job.id == like.id))
            for number, seconds in enumerate(durations):
                ran = {"started_at": now(-ago - seconds), "ended_at": now(-ago), "state": "succeeded"}
                session.execute(insert(Job).values(columns | {"id": f"{like.id[:9]}{number:05}"} | ran | values))

    return ended


@pytest.fixture
def why(database):
    """A function that returns why a job waits, by the present state of the database."""

    def why(job):
        with database.read() as session:
            return wait_status(session, session.scalars(select(Job).where(Job.id == job.id)).one())

    return why


def test_only_waiting_jobs_wait(database, submit, runs):
    first, second = submit(), submit()
    runs(first)
    with database.read() as session:
        claimed = session.scalars(select(Job).where(Job.id == first.id)).one()
        assert wait_statuses(session, [claimed]) == {}
        waits = wait_statuses(session, [claimed, second])
        assert list(waits) == [second.id]
        # Its row was read before it was claimed: still an answer, and the first place.
        session.expunge_all()
        assert wait_statuses(session, [first, second])[first.id].position == 1


def test_the_number_of_queries_does_not_depend_on_the_number_of_jobs(database, submit, add_worker):
    add_worker()
    jobs = [submit() for _ in range(12)]

    def count(some):
        seen = []

        def note(_connection, _cursor, statement, *_):
            seen.append(statement)

        with database.read() as session:
            event.listen(database.engine, "before_cursor_execute", note)
            wait_statuses(session, some)
            event.remove(database.engine, "before_cursor_execute", note)
        return len(seen)

    assert 0 < count(jobs) == count(jobs[-1:]) <= 10


def test_jobs_with_the_same_needs_share_what_is_found_out_about_workers(database, submit, add_worker, monkeypatch):
    for number in range(5):
        add_worker(f"w{number}")
    jobs = [submit() for _ in range(12)]
    compared = []
    monkeypatch.setattr(wait_status_module, "fits", lambda *pair: compared.append(pair) or True)
    with database.read() as session:
        waits = wait_statuses(session, jobs)
    assert (len(waits), len(compared)) == (12, 1 + 5), "once more for all that have these needs"


def test_workers_that_take_no_jobs_are_named_where_they_could_help(database, submit, add_worker, why, change):
    job = submit()
    change(job, cpus=64.0, memory_mb=1)
    add_worker("other", machine_types=["V100"], cpus=128.0)
    add_worker("small", cpus=16.0)
    add_worker("large", cpus=128.0, seen=90_000)
    with database.write() as session:
        for name in ("other", "small", "large"):
            workers.refuse(session, name, f"{name} has no mark.")
        workers.refuse(session, "new", "it\nwaits\0", host="far")
    said = "Worker large does not take such jobs (large has no mark). Worker new does not take such jobs (it waits )"
    assert (why(job).reason, why(job).detail) == ("no_worker", said)
    add_worker("ready", cpus=16.0)
    assert why(job).reason == "too_large"
    assert why(job).detail == f"64 CPUs, but the largest worker of its machine type has 16. {said}"


def test_too_large_says_what_there_is(submit, add_worker, why, change):
    job = submit()
    add_worker("a", cpus=16.0, memory_mb=64_000, gpus=["0", "1"])
    add_worker("b", cpus=8.0, memory_mb=128_000, gpus=["0"])
    change(job, cpus=64.0)
    assert why(job).detail == "64 CPUs, but the largest worker of its machine type has 16"
    change(job, memory_mb=512_000)
    assert why(job).detail == (
        "64 CPUs, but the largest worker of its machine type has 16; 512,000 MiB of memory, but the largest worker "
        "of its machine type has 128,000"
    )
    change(job, cpus=16.0, memory_mb=100_000)
    assert why(job).detail == (
        "16 CPUs and 100,000 MiB of memory, but no single worker of its machine type has all of that"
    )
    change(job, cpus=None, memory_mb=None, gpus=4)
    found = why(job)
    assert (found.reason, found.detail) == (
        "too_large",
        "4 GPUs, but the largest worker of its machine type has 2",
    )
    add_worker("c")  # one that counts nothing takes everything
    assert why(job).reason == "waiting_for_machine"


def test_a_job_that_can_never_start_is_ahead_of_nobody(submit, add_worker, why, change, runs):
    first, stuck, others, stuck_too, job = submit(), submit(), submit(), submit(), submit()
    add_worker(cpus=4.0, memory_mb=4000)
    runs(first)
    change(stuck, memory_mb=9_000_000)
    change(stuck_too, cpus=64.0, gpus=0)
    assert (why(job).reason, why(job).detail, why(job).position) == ("behind_jobs", "1 job", 2)
    assert (why(others).reason, why(others).position) == ("waiting_for_machine", 1)
    change(others, cpus=5.0)
    assert (why(job).reason, why(job).position) == ("waiting_for_machine", 1)
    add_worker("large", cpus=100.0, memory_mb=10_000_000)
    assert why(job).detail == "3 jobs"


def test_a_projects_quota_counts_its_jobs_on_all_machines(database, submit, add_worker, why, runs):
    first, second, job = submit(), submit(), submit()
    add_worker(slots=9)
    runs(first)
    with database.write() as session:
        session.execute(update(Project).values(max_running=2))
    assert why(job).reason == "behind_jobs", "one more may run"
    runs(second, machine_type="V100")
    found = why(job)
    assert (found.reason, found.detail) == ("project_quota", "2 running jobs")


def test_a_gpu_that_no_job_holds_and_something_uses_is_told(database, submit, add_worker, why, change):
    holder, job = submit(), submit()
    change(job, gpus=1)
    change(holder, state="running", worker="a", host="host-a")
    add_worker("a", gpus=["0", "1"], slots=4, taken_gpus={"1": "900 MiB in use, by process 7 (python)"})
    assert why(job).reason == "waiting_for_machine"
    with database.write() as session:
        session.execute(insert(GpuAllocation), {"host": "host-a", "gpu": "0", "job_id": holder.id, "attempt": 1})
    found = why(job)
    assert found.reason == "waiting_for_gpus"
    assert found.detail == (
        "a GPU; 0 of 2 are free on host-a: GPU 1 is in use outside this service (900 MiB in use, by process 7 "
        "(python)); jobs use the others"
    )
    with database.write() as session:
        workers.set_taken_gpus(session, "a", {"0": "ours by now"})
    assert why(job).reason == "waiting_for_machine", "what a job holds is no stranger's"
    with database.write() as session:
        workers.set_taken_gpus(session, "a", {})
    assert why(job).reason == "waiting_for_machine"


def test_the_more_specific_reason_wins(database, submit, add_worker, why, change):
    submit(priority=90)
    job = submit()
    change(job, gpus=1, cpus=2.0, run_after=now(60), reason="retrying")
    seen = [why(job).reason]
    add_worker("small", cpus=1.0, drained=True)
    seen.append(why(job).reason)
    add_worker("large", drained=True, gpus=["0"])
    seen.append(why(job).reason)
    with database.write() as session:
        session.execute(update(Worker).values(drained_at=None))
        session.execute(update(Project).values(max_running=0))
        session.execute(insert(GpuAllocation).values(host="host-large", gpu="0", job_id=job.id, attempt=1))
    seen.append(why(job).reason)
    change(job, run_after=None)
    seen.append(why(job).reason)
    with database.write() as session:
        session.execute(update(Project).values(max_running=None))
    seen.append(why(job).reason)
    with database.write() as session:
        session.execute(text("DELETE FROM gpu_allocations"))
    seen.append(why(job).reason)
    assert seen == [
        "no_worker",
        "too_large",
        "draining",
        "retrying",
        "project_quota",
        "waiting_for_gpus",
        "behind_jobs",
    ]


def seconds_until(database, found):
    with database.read() as session:
        return (found.starts_at - session.scalars(select(now())).one()).total_seconds()


def test_a_start_is_estimated_from_the_last_jobs(database, submit, add_worker, why, runs, ended):
    busy, first, second, third = (submit() for _ in range(4))
    add_worker(slots=2)
    runs(busy, elapsed=70)
    ended(98, 102)
    assert seconds_until(database, why(first)) == pytest.approx(0, abs=3), "a slot is free"
    assert why(second).starts_at is None, "two that ended say too little"
    ended(100)
    found = [seconds_until(database, why(job)) for job in (first, second, third)]
    # They last 100 s: one slot is free, the other one in 30 s, the first again in 100 s.
    assert found == pytest.approx([0, 30, 100], abs=3)
    ended(1000, 1000)
    assert seconds_until(database, why(first)) == pytest.approx(0, abs=3)
    assert why(second).starts_at is None, "jobs differ too much"


def test_jobs_that_wait_for_a_device_of_a_cloud_leave_their_slots_to_others(
    database, submit, add_worker, why, runs, ended
):
    ended(100, 100, 100)
    holding, job = submit(), submit()
    add_worker()
    runs(holding, phase="waiting")
    assert seconds_until(database, why(job)) == pytest.approx(0, abs=3)


def test_without_a_worker_that_takes_it_no_start_is_estimated(submit, add_worker, why, ended):
    ended(1, 1, 1)
    job = submit()
    assert why(job).starts_at is None
    add_worker(drained=True)
    assert why(job).starts_at is None


def test_a_job_that_needs_every_gpu_starts_when_the_last_is_free(
    database, submit, add_worker, why, change, runs, ended
):
    ended(100, 100, 100)
    add_worker(slots=8, gpus=["0", "1"])
    one, two, job = submit(), submit(), submit()
    runs(one, elapsed=20, gpus=1)
    runs(two, elapsed=60, gpus=1)
    with database.write() as session:
        for gpu, holder in (("0", one), ("1", two)):
            session.execute(insert(GpuAllocation).values(host="host-w1", gpu=gpu, job_id=holder.id, attempt=1))
    change(job, gpus=2)
    assert seconds_until(database, why(job)) == pytest.approx(80, abs=3)
    change(job, gpus=0)
    assert seconds_until(database, why(job)) == pytest.approx(0, abs=3)


def test_what_a_machine_has_left_of_cpus_and_memory_counts(database, submit, add_worker, why, change, runs, ended):
    ended(100, 100, 100)
    add_worker(slots=8, cpus=4.0, memory_mb=8000)
    busy, job = submit(), submit()
    runs(busy, elapsed=40, cpus=3.0, memory_mb=1000)
    change(job, cpus=2.0)
    assert seconds_until(database, why(job)) == pytest.approx(60, abs=3)
    change(job, cpus=1.0, memory_mb=7000)
    assert seconds_until(database, why(job)) == pytest.approx(0, abs=3)
    change(job, memory_mb=7001)
    assert seconds_until(database, why(job)) == pytest.approx(60, abs=3)


def test_a_quota_and_a_pause_delay_the_start(database, submit, add_worker, why, change, runs, ended):
    ended(100, 100, 100)
    add_worker(slots=8)
    busy, job = submit(), submit()
    runs(busy, elapsed=50)
    with database.write() as session:
        session.execute(update(Project).values(max_running=1))
    assert seconds_until(database, why(job)) == pytest.approx(50, abs=3)
    change(job, run_after=now(300))
    assert seconds_until(database, why(job)) == pytest.approx(300, abs=3)
    with database.write() as session:
        session.execute(update(Project).values(max_running=0))
    assert why(job).starts_at is None, "a project that may run nothing"
