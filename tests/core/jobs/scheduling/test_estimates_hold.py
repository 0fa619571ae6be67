"""Estimated starts beside those of real claims, in simulated time: an estimate is right, or there is none."""

import random
from datetime import timedelta

import pytest
from sqlalchemy import DateTime, insert, select, update

from core.db.database import now
from core.db.models.jobs import Job, Project, Worker
from core.jobs import lifecycle, queries
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.wait_status import wait_statuses
from core.jobs.states import JobState

TIMES = [column for column in Job.__table__.columns if isinstance(getattr(column.type, "impl", None), DateTime)]


class Simulation:
    """A queue whose jobs last as long as they say; time passes when all times that are stored are set back."""

    def __init__(self, database, seconds):
        self._database, self._seconds, self._ends = database, seconds, {}
        self.clock, self.estimates, self.starts = 0.0, {}, {}

    def pass_time(self, seconds):
        self.clock += seconds
        with self._database.write() as session:
            for row in session.execute(select(Job.id, *TIMES).where(Job.finished_at.is_(None))).all():
                values = {
                    column.key: getattr(row, column.key) - timedelta(seconds=seconds)
                    for column in TIMES
                    if getattr(row, column.key) is not None
                }
                session.execute(update(Job).where(Job.id == row.id).values(values))
            session.execute(update(Worker).values(seen_at=now()))

    def claim(self):
        with self._database.read() as session:
            offers = [
                WorkerOffer(w.name, w.host, tuple(w.backends), cpus=w.cpus) for w in session.scalars(select(Worker))
            ]
            slots = {worker.name: worker.slots for worker in session.scalars(select(Worker))}
        for offer in offers:
            while sum(worker == offer.worker for worker, _ in self._ends.values()) < slots[offer.worker]:
                with self._database.write() as session:
                    job = claims.claim(session, offer)
                    if job is None:
                        break
                    lifecycle.mark_running(session, job, {})
                self.starts[job.id] = self.clock
                self._ends[job.id] = offer.worker, self.clock + self._seconds[job.id]

    def estimate(self):
        """Record what is estimated now, by job."""
        with self._database.read() as session:
            for job_id, wait in wait_statuses(session, session.scalars(select(Job))).items():
                if wait.starts_at is not None:
                    left = (wait.starts_at - session.scalars(select(now())).one()).total_seconds()
                    self.estimates[job_id, self.clock] = self.clock + left

    def run(self):
        self.claim()
        while self._ends:
            self.estimate()
            next_end = min(end for _, end in self._ends.values())
            self.pass_time(next_end - self.clock)
            with self._database.write() as session:
                for job_id in [job_id for job_id, (_, end) in self._ends.items() if end <= self.clock]:
                    del self._ends[job_id]
                    job = lifecycle.mark_finishing(session, queries.get_row(session, job_id), "completed", exit_code=0)
                    lifecycle.finish(session, job, artifacts_state="none")
            self.claim()


def history(database, like, machine, durations):
    columns = {column.key: getattr(like, column.key) for column in Job.__mapper__.column_attrs}
    del columns["seq"]
    with database.write() as session:
        for number, seconds in enumerate(durations):
            ran = {"started_at": now(-5000 - seconds), "ended_at": now(-5000), "finished_at": now(-5000)}
            values = {"id": f"jh{machine.lower()}{number}", "state": JobState.SUCCEEDED, "machine_type": machine}
            session.execute(insert(Job).values(columns | values | ran))


def add_workers(database, rng, max_running):
    with database.write() as session:
        for number in range(rng.randint(1, 2)):
            values = {"name": f"w{number}", "host": f"h{number}", "boot_id": "b", "backends": ["process"]}
            room = {"slots": rng.randint(1, 3), "cpus": 4.0, "started_at": now(), "seen_at": now()}
            session.execute(insert(Worker).values(values | room))
        session.execute(update(Project).values(max_running=max_running))


def submit_one(database, submit, rng, kinds, projects, earlier):
    mixed = "mixed" in kinds  # of machine types, needs and jobs that follow others
    options = {"priority": rng.choice([50, 50, 80])} if "priorities" in kinds else {}
    if mixed and earlier and rng.random() < 0.3:
        options["after"] = (rng.choice(earlier),)
    machine = rng.choice(["CPU", "V100"]) if mixed else "CPU"
    job = submit(machine=machine, project=f"p{rng.randrange(projects)}", **options)
    if mixed and rng.random() < 0.3:
        with database.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(cpus=3.0))
    return job


CASES = {
    "alike": (1, 0.0, {}),
    "nearly alike": (1, 0.15, {}),
    "unlike": (1, 1.0, {}),
    "priorities": (1, 0.1, {"priorities": True}),
    "quota": (1, 0.1, {"quota": True}),
    "projects": (2, 0.1, {"priorities": True}),
    "mixed": (1, 0.0, {"mixed": True}),
}


@pytest.mark.parametrize("case", CASES)
def test_an_estimate_is_right_or_there_is_none(database, submit, case):
    rng = random.Random(case)  # noqa: S311 - for a repeatable choice
    projects, spread, kinds = CASES[case]
    seconds = {}

    def lasts():
        return max(5.0, 300 * (1 + spread * rng.uniform(-1, 1)))

    for _ in range(30):
        job = submit_one(database, submit, rng, kinds, projects, list(seconds))
        seconds[job.id] = lasts()
    for machine in ("CPU", "V100"):
        history(database, job, machine, [lasts() for _ in range(30)])
    add_workers(database, rng, max_running=2 if "quota" in kinds else None)
    simulation = Simulation(database, seconds)
    simulation.run()
    assert simulation.starts.keys() == seconds.keys()
    wrong = [
        (job_id, at, simulation.starts[job_id], estimated)
        for (job_id, at), estimated in simulation.estimates.items()
        if abs(simulation.starts[job_id] - estimated) > max(60.0, 0.25 * (estimated - at)) + 5
    ]
    assert wrong == []
    if case in {"alike", "nearly alike", "priorities", "quota"}:
        assert len(simulation.estimates) > 50
