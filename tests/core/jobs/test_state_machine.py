"""The job record against a model, over random histories: claims, adoptions, zombies, repeats, faults and stops.

The model says which job is next, by priority, share and quota, and which GPUs are held.
"""

import os
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test
from sqlalchemy import delete, select, update
from support.job_insertion import insert_job

from core.catalogue.machine_types import Catalogue
from core.db.database import Database, now
from core.db.models.jobs import GpuAllocation, Job, Project
from core.errors import LeaseLost
from core.jobs import lifecycle, projects, queries, submission
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import OWNED, TERMINAL, TRANSITIONS, JobState

EXAMPLES = int(os.environ.get("GRADIENT_TEST_EXAMPLES", "12"))
WORKERS = st.sampled_from(["w1", "w2"])
PROJECTS = ["alpha", "beta"]
GPUS = ("0", "1")
COUNTED_REASONS = {0: "completed", 1: "exit_nonzero", 137: "process_lost"}


@dataclass
class Known:
    """The model's state of one job."""

    state: JobState = JobState.QUEUED
    attempt: int = 0
    lease: int = 0
    max_attempts: int = 1
    seq: int = 0
    priority: int = 50
    project: str = ""
    gpus: int = 0
    faults: int = 0
    began: bool = False
    reason: str = ""
    stop: bool = False
    ends: list[str] = field(default_factory=list)


class JobRecord(RuleBasedStateMachine):
    """Rules act as workers and users do; held rows may be stale, as a zombie's are."""

    database: Database
    held = Bundle("held")

    def __init__(self):
        super().__init__()
        self.known: dict[str, Known] = {}
        self.catalogue = Catalogue.load()
        self.quota: dict[str, int | None] = dict.fromkeys(PROJECTS)
        self.drained: set[str] = set()
        with self.database.write() as session:
            session.execute(update(Job).where(Job.state.not_in(TERMINAL)).values(state=JobState.CANCELLED))
            session.execute(delete(GpuAllocation))
            self.projects = {name: projects.get_or_create(session, name)[0].id for name in PROJECTS}
            session.execute(update(Project).values(max_running=None))
            for name in ("w1", "w2"):
                workers.register(session, self.offer(name), boot_id="b", slots=9)
                workers.set_drained(session, name, drained=False)

    def offer(self, worker):
        return WorkerOffer(worker, "h", ("process",), gpus=GPUS)

    def write(self, function, *arguments, **keywords):
        with self.database.write() as session:
            return function(session, *arguments, **keywords)

    @rule(
        max_attempts=st.integers(1, 3),
        priority=st.sampled_from([10, 50]),
        project=st.sampled_from(PROJECTS),
        machine=st.sampled_from(["CPU", "V100"]),
    )
    def submit(self, max_attempts, priority, project, machine):
        def insert(session):
            made, _ = projects.get_or_create(session, project)
            spec = JobSpec(machine_type=machine, command="true", max_attempts=max_attempts, priority=priority)
            new_job = submission.NewJob(
                spec=spec, machine=self.catalogue.get(machine), backend="process", project_id=made.id, submitted_by="t"
            )
            return insert_job(session, new_job)

        job, _ = self.write(insert)
        self.known[job.id] = Known(
            max_attempts=max_attempts,
            seq=job.seq,
            priority=priority,
            project=project,
            gpus=int(machine == "V100"),
        )

    @rule(project=st.sampled_from(PROJECTS), quota=st.sampled_from([None, 1, 2]))
    def set_quota(self, project, quota):
        with self.database.write() as session:
            session.execute(update(Project).where(Project.name == project).values(max_running=quota))
        self.quota[project] = quota

    @rule(worker=WORKERS, drained=st.booleans())
    def drain(self, worker, drained):
        self.write(workers.set_drained, worker, drained=drained)
        self.drained = self.drained | {worker} if drained else self.drained - {worker}

    def owned(self, **same):
        held = (known for known in self.known.values() if known.state in OWNED)
        return [known for known in held if all(getattr(known, name) == value for name, value in same.items())]

    def expected(self, worker):
        """Id of the job that is next for this worker, by the rules."""
        if worker in self.drained:
            return None
        with self.database.read() as session:
            rows = session.execute(select(Project.name, Project.last_claimed_at))
            served = {name: at.timestamp() if at else 0.0 for name, at in rows}
        running = {project: len(self.owned(project=project)) for project in PROJECTS}
        free = len(GPUS) - len(self.owned(gpus=1))
        fitting = [
            (-known.priority, running[known.project], served[known.project], known.seq, job_id)
            for job_id, known in self.known.items()
            if known.state is JobState.QUEUED
            and known.gpus <= free
            and running[known.project] < (self.quota[known.project] or 1000)
        ]
        return min(fitting)[-1] if fitting else None

    @rule(target=held, worker=WORKERS)
    def claim(self, worker):
        with self.database.write() as session:  # the pause before a retry is over
            session.execute(update(Job).where(Job.state == JobState.QUEUED).values(run_after=None))
        expected = self.expected(worker)
        job = self.write(claims.claim, self.offer(worker))
        assert (job.id if job else None) == expected
        if job is None:
            return multiple()
        known = self.known[job.id]
        known.began = False
        known.state, known.attempt, known.lease = JobState.STARTING, known.attempt + 1, known.lease + 1
        return job

    @rule(target=held, worker=WORKERS, silent=st.booleans())
    def adopt(self, worker, silent):
        if silent:
            with self.database.write() as session:
                session.execute(update(Job).values(heartbeat_at=now(-1000)))
        rows = self.write(lifecycle.adopt, worker, "h", backends=["process"], stale_seconds=60)
        for row in rows:
            self.known[row.id].lease += 1
        if silent:
            assert {row.id for row in rows} == {i for i, known in self.known.items() if known.state in OWNED}
        return multiple(*sorted(rows, key=lambda row: row.seq))

    def act(self, job, expected, function, *arguments, **keywords):
        """Call as the holder of `job`; it must work exactly if the model says so. The row after it, or None."""
        known = self.known[job.id]
        allowed = known.lease == job.lease and known.state in expected and known.state is job.state
        if not allowed:
            with pytest.raises(LeaseLost):
                self.write(function, job, *arguments, **keywords)
            return None
        return self.write(function, job, *arguments, **keywords)

    @rule(target=held, job=held)
    def started(self, job):
        row = self.act(job, {JobState.STARTING}, lifecycle.mark_running, {"version": 1})
        if row is None:
            return multiple()
        self.known[job.id].state = JobState.RUNNING
        self.known[job.id].began = True
        return row

    @rule(target=held, job=held, code=st.sampled_from([0, 1, 137]))
    def ended(self, job, code):
        reason = COUNTED_REASONS[code]
        row = self.act(job, {JobState.STARTING, JobState.RUNNING}, lifecycle.mark_finishing, reason, exit_code=code)
        if row is None:
            return multiple()
        self.known[job.id].state = JobState.FINISHING
        self.known[job.id].reason = reason
        return row

    def goes_on(self, known):
        """Return whether another attempt follows; if it follows an infrastructure fault, count the fault."""
        if known.stop or known.reason == "completed":
            return False
        if known.reason == "exit_nonzero":
            return known.attempt - known.faults < known.max_attempts
        again = (known.max_attempts > 1 or not known.began) and known.faults < lifecycle.MAX_MACHINE_FAULTS
        known.faults += again
        return again

    @rule(target=held, job=held)
    def finish(self, job):
        row = self.act(job, {JobState.FINISHING}, lifecycle.finish, artifacts_state="none")
        if row is None:
            return multiple()
        known = self.known[job.id]
        assert (row.state is JobState.QUEUED) == self.goes_on(known)
        if row.state is JobState.QUEUED:
            known.lease += 1
        else:
            known.ends.append(row.state)
        known.state = row.state
        return row

    @rule(job=held)
    def give_up(self, job):
        row = self.act(job, OWNED, lifecycle.fail_lost, "worker_lost")
        if row is None:
            return
        known = self.known[job.id]
        known.reason = "worker_lost"
        assert (row.state is JobState.QUEUED) == self.goes_on(known)
        known.lease += 1
        known.state = row.state
        if row.state in TERMINAL:
            known.ends.append(row.state)

    @rule(data=st.data())
    def request_stop(self, data):
        if not self.known:
            return
        job_id = data.draw(st.sampled_from(list(self.known)))
        known = self.known[job_id]
        row = self.write(lifecycle.request_stop, job_id)
        if known.state is JobState.QUEUED:
            known.state, known.lease = JobState.CANCELLED, known.lease + 1
            known.ends.append(row.state)
        known.stop = known.stop or known.state in OWNED
        assert row.state is known.state

    @rule(worker=WORKERS)
    def beat(self, worker):
        heartbeats = self.write(workers.heartbeat, self.offer(worker), boot_id="b")
        for job_id, heartbeat in heartbeats.items():
            known = self.known[job_id]
            assert known.state in OWNED
            assert (heartbeat.lease, heartbeat.stop_requested) == (known.lease, known.stop)

    @invariant()
    def rows_agree_with_the_model(self):
        with self.database.read() as session:
            for job_id, known in self.known.items():
                job = queries.get_row(session, job_id)
                assert (job.state, job.attempt, job.lease) == (known.state, known.attempt, known.lease)
                assert len(known.ends) == (job.state in TERMINAL), "one end, and only one"
                assert job.attempt - job.machine_faults <= job.max_attempts
                assert job.machine_faults == known.faults

    @invariant()
    def a_gpu_is_held_by_the_job_that_runs_on_it(self):
        with self.database.read() as session:
            gpus = {(row.job_id, row.attempt) for row in session.scalars(select(GpuAllocation))}
        owners = {(i, known.attempt) for i, known in self.known.items() if known.state in OWNED and known.gpus}
        assert gpus == owners

    def teardown(self):
        """The events tell the same story: a chain of legal moves from submission to the present state."""
        with self.database.read() as session:
            for job_id, known in self.known.items():
                state = JobState.QUEUED
                for event in queries.events(session, job_id):
                    if event.from_state is not None:
                        assert event.from_state == state
                        assert JobState(event.to_state) in TRANSITIONS[state]
                        state = JobState(event.to_state)
                assert state is known.state


def run(database):
    machine = type("Machine", (JobRecord,), {"database": database})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
            derandomize=True,
            phases=[Phase.explicit, Phase.generate],  # each step is a transaction: shrinking would take minutes
        ),
    )


@pytest.mark.timeout(600)
def test_the_job_record_keeps_to_its_model(database):
    run(database)
    with database.read() as session:
        assert session.scalar(select(Job.seq).limit(1)) is not None
