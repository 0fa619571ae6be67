"""Places in the queue, against a model that takes one job after another."""

from sqlalchemy import insert, select, update

from core.db.database import now
from core.db.models.jobs import Job, Project
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.queue_position import ProjectUsage, QueueGroup, QueuePool, QueuePosition, queue_positions


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
