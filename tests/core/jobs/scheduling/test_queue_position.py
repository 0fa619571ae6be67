"""Places in the queue, against a model that takes one job after another."""

from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import insert, select, update

from core.db.database import now
from core.db.models.jobs import Job, Project
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.queue_position import ProjectUsage, QueueGroup, QueuePool, QueuePosition, queue_positions

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)


@st.composite
def queues(draw, priorities):
    """Jobs as (project, priority, seq), and each project's share."""
    projects = "abcd"[: draw(st.integers(1, 4))]
    served = draw(st.lists(st.none() | st.integers(0, 99), min_size=4, max_size=4))
    shares = {
        project: ProjectUsage(
            running=draw(st.integers(0, 4)),
            max_running=draw(st.none() | st.integers(0, 6)),
            last_claimed_at=None if at is None else EPOCH + timedelta(seconds=at),
        )
        for project, at in zip(projects, served, strict=False)
    }
    some = draw(st.lists(st.tuples(st.sampled_from(projects), st.sampled_from(priorities)), min_size=1, max_size=25))
    return [(project, priority, seq) for seq, (project, priority) in enumerate(some)], shares


def claimed(jobs, shares):
    """The jobs in the order in which claims take them, while nothing ends."""
    waiting, taken = list(jobs), []
    running = {project: share.running for project, share in shares.items()}
    served = {project: share.last_claimed_at or EPOCH - timedelta(days=1) for project, share in shares.items()}
    while True:
        open_ = [job for job in waiting if (limit := shares[job[0]].max_running) is None or running[job[0]] < limit]
        if not open_:
            return taken
        chosen = min(open_, key=lambda job: (-job[1], running[job[0]], served[job[0]], job[2]))
        waiting.remove(chosen)
        taken.append(chosen)
        running[chosen[0]] += 1
        served[chosen[0]] = EPOCH + timedelta(days=len(taken))


def places(jobs, shares):
    """The place of each job as it is computed from counts."""
    counted, first, last = Counter(), {}, {}
    for project, priority, seq in jobs:
        counted[project, priority] += 1
        first.setdefault((project, priority), seq)
        last[project, priority] = seq
    pool = QueuePool([QueueGroup(*key, number, first[key], last[key]) for key, number in counted.items()], shares)
    own = defaultdict(list)
    for job in sorted(jobs, key=lambda job: (-job[1], job[2])):
        own[job[0]].append(job)
    return {job: pool.position(job[0], job[1], rank).number for some in own.values() for rank, job in enumerate(some)}


@given(queues(priorities=[50]))
def test_places_are_the_order_of_the_claims(queue):
    jobs, shares = queue
    found = places(jobs, shares)
    assert sorted(found.values()) == list(range(1, len(jobs) + 1))
    taken = claimed(jobs, shares)
    assert [found[job] for job in taken] == list(range(1, len(taken) + 1))


@given(queues(priorities=[10, 50, 90]))
def test_places_go_by_priority_and_by_share_within_each(queue):
    jobs, shares = queue
    found = places(jobs, shares)
    assert sorted(found.values()) == list(range(1, len(jobs) + 1))
    taken = claimed(jobs, shares)
    assert {found[job] for job in taken} == set(range(1, len(taken) + 1)), "those past their quota come last"
    assert [job[1] for job in sorted(taken, key=found.get)] == [job[1] for job in taken]
    for project in shares:
        own = [job for job in taken if job[0] == project]
        assert own == sorted(own, key=found.get)


def test_a_project_that_has_more_on_machines_waits_longer():
    shares = {"a": ProjectUsage(running=2), "b": ProjectUsage()}
    pool = QueuePool([QueueGroup("a", 50, 3, 1, 3), QueueGroup("b", 50, 4, 4, 7)], shares)
    # b catches up first; then they take turns, a first: b has just been served.
    assert [pool.position("b", 50, rank).number for rank in range(4)] == [1, 2, 4, 6]
    assert [pool.position("a", 50, rank).number for rank in range(3)] == [3, 5, 7]


def test_places_in_the_database(database, submit):
    jobs = [submit(priority=priority) for priority in (50, 50, 90, 50, 50, 50)]
    with database.write() as session:
        for project, served in (("busy", None), ("full", None), ("idle", now(-60))):
            session.execute(insert(Project).values(id=project, name=project, created_at=now(), last_claimed_at=served))
        session.execute(update(Project).where(Project.id == "full").values(max_running=1))
        _change(session, jobs[0], project_id="busy")
        _change(session, jobs[1], project_id="full")
        _change(session, jobs[3], project_id="busy", state="running")
        _change(session, jobs[4], project_id="full", state="running", machine_type="V100")
        _change(session, jobs[5], project_id="idle")
        v100 = submit_like(session, jobs[0], machine_type="V100")
    waiting = [jobs[0], jobs[1], jobs[2], jobs[5], v100]
    with database.read() as session:
        fresh = [session.scalars(select(Job).where(Job.id == job.id)).one() for job in waiting]
        found = queue_positions(session, fresh)
        alone = {job.id: queue_positions(session, [job])[job.id] for job in fresh}
    numbers = {job.id: found[job.id].number for job in waiting}
    # Urgent first, then the project with nothing on machines, the one with a job there, and the one at its quota.
    assert numbers == {jobs[2].id: 1, jobs[5].id: 2, jobs[0].id: 3, jobs[1].id: 4, v100.id: 1}
    assert alone == found
    assert found[jobs[1].id] == QueuePosition(4, 0, ProjectUsage(running=1, max_running=1))
    with database.write() as session:
        _change(session, jobs[2], state="cancelled")
    with database.read() as session:
        assert jobs[2].id not in queue_positions(session, fresh)


def test_places_are_the_order_in_which_workers_take_the_jobs(database, submit):
    asked = [("a", 50), ("a", 50), ("b", 50), ("a", 90), ("c", 50), ("b", 10), ("c", 50), ("a", 10), ("c", 90)]
    waiting = [submit(project=project, priority=priority) for project, priority in asked]
    elsewhere = submit(project="b", machine="V100")
    with database.write() as session:
        session.execute(update(Project).where(Project.name == "c").values(max_running=2))
        _change(session, elsewhere, state="running")
    with database.read() as session:
        found = queue_positions(session, waiting)
    expected = sorted(waiting, key=lambda job: found[job.id].number)
    taken = []
    with database.write() as session:
        while job := claims.claim(session, WorkerOffer("w", "h", ("process",), machine_types=("CPU",))):
            taken.append(job.id)
    assert taken == [job.id for job in expected[:8]]
    assert expected[8].id == waiting[6].id, "past its project's quota"


def _change(session, job, **values):
    session.execute(update(Job).where(Job.id == job.id).values(**values))


def submit_like(session, job, **values):
    columns = {column.key: getattr(job, column.key) for column in Job.__mapper__.column_attrs if column.key != "seq"}
    made = {**columns, "id": "jzzzzzzzzzzzzz", **values}
    return session.scalars(insert(Job).values(made).returning(Job)).one()
