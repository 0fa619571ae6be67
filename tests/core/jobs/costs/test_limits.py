"""Ceilings and budgets under load, by a simulated clock: 20 clients, 500 jobs, workers that are killed.

A list of what ran when, kept beside the database, says what was spent.
"""

import heapq
import random
from collections import Counter, defaultdict
from datetime import UTC, datetime
from functools import partial
from itertools import count

import pytest
from sqlalchemy import insert

from core.db.models.credentials import ApiKey, User, UserKey
from core.errors import BudgetSpent
from core.ids import new_id
from core.jobs import lifecycle, projects, submission
from core.jobs.costs import budgets, limits
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.spec.arrays import ArrayMember
from core.jobs.spec.job_spec import JobSpec
from core.jobs.states import JobState
from core.jobs.submission import NewJob

START = datetime(2026, 3, 5, tzinfo=UTC)
DAY = 86400
GRACE = 30
MACHINES = ("V100", "A100", "P4000")


class Simulation:
    """Clients that submit, workers that run jobs for random times and are killed, and a list of all runs."""

    def __init__(self, database, catalogue, clock, seed):
        self.database, self.catalogue, self.clock = database, catalogue, clock
        self.choose = random.Random(seed)  # noqa: S311 - of a test
        self.events, self.order = [], count()
        self.runs, self.stops, self.reasons = [], Counter(), Counter()  # stops: by job
        self.jobs, self.refused, self.extended = {}, 0, 0
        self.idle = {f"w{number}" for number in range(12)}

    def after(self, seconds, action, *arguments):
        heapq.heappush(self.events, (self.clock.seconds + seconds, next(self.order), action, arguments))

    def submit(self, key, project, size, **spec):
        machine = self.catalogue.get(self.choose.choice(MACHINES))
        options = JobSpec(machine_type=machine.name, command="true", stop_grace=GRACE, max_attempts=3, **spec)
        array = new_id("a")
        with self.database.write() as session:
            new = [
                NewJob(
                    spec=options,
                    machine=machine,
                    backend="process",
                    project_id=project,
                    submitted_by=key,
                    array=ArrayMember(array, index, str(index), 4) if size > 1 else None,
                )
                for index in range(size)
            ]
            try:
                with session.begin_nested():
                    jobs = submission.insert_queued(session, new)
                    budgets.check(session, jobs[0], 1)
            except BudgetSpent:
                self.refused += size
                return
        self.jobs |= {job.id: job for job in jobs}
        self.serve()

    def serve(self):
        for worker in sorted(self.idle):
            with self.database.write() as session:
                job = claims.claim(session, WorkerOffer(worker, "h", ("process",)))
            if job is None:
                return
            self.idle.discard(worker)
            self.after(self.choose.uniform(0, 20), self.start, job)

    def start(self, job):
        with self.database.write() as session:
            job = lifecycle.mark_running(session, job, {"name": job.id})
        self.watch(job, self.clock.seconds, self.clock.seconds + self.choose.lognormvariate(6, 1.2))

    def watch(self, job, began, ends):
        """Let a running job go on until its own end, a loss of its machine, or its deadline, whichever is first."""
        due = limits.deadline(job)
        until = ends if due is None else min(ends, began + due.seconds)
        lost = self.clock.seconds + self.choose.expovariate(1 / 4000)
        if lost < until:
            self.after(lost - self.clock.seconds, self.lose, job, began, ends)
        elif ends <= until:
            self.after(ends - self.clock.seconds, self.end, job, began, "completed")
        else:
            self.after(max(0, until - self.clock.seconds), self.reach, job, began, ends, due)

    def reach(self, job, began, ends, due):
        if due.reason == "cost_limit":
            with self.database.write() as session:
                extended = limits.extend(session, job)
            if extended is not None:
                self.extended += 1
                self.watch(extended, began, ends)
                return
        self.stops[job.id] += 1
        self.after(self.choose.uniform(0, GRACE), self.end, job, began, due.reason)

    def lose(self, job, began, ends):
        """Kill the worker: another one adopts the job, or its machine is lost and the job runs again."""
        if self.choose.random() < 0.5:
            with self.database.write() as session:
                [adopted] = lifecycle.adopt(session, job.worker, "h", backends=(), stale_seconds=0)
            self.watch(adopted, began, ends)
            return
        self.record(job, began)
        with self.database.write() as session:
            lifecycle.fail_lost(session, job, "lost_contact")
        self.free(job)

    def end(self, job, began, reason):
        self.record(job, began)
        code = 0 if reason == "completed" else None
        with self.database.write() as session:
            ended = lifecycle.mark_finishing(session, job, reason, exit_code=code)
            lifecycle.finish(session, ended, artifacts_state="none")
        self.reasons[reason] += 1
        self.free(job)

    def free(self, job):
        self.idle.add(job.worker)
        self.serve()

    def record(self, job, began):
        self.runs.append((job, began, self.clock.seconds))

    def run(self, days):
        for hour in range(0, days * 24, 1):
            self.after(hour * 3600, self.serve)
        while self.events:
            self.clock.seconds, _, action, arguments = heapq.heappop(self.events)
            action(*arguments)

    def spent(self, of, rate, begin=float("-inf"), end=float("inf")):
        """Return the amount that jobs took in a time, and how much of it grace periods may have taken."""
        amount = grace = 0.0
        for job, began, ended in self.runs:
            if of(job):
                amount += max(0.0, min(ended, end) - max(began, begin)) * rate(job) / 3600
                grace += GRACE * rate(job) / 3600 if self.stops[job.id] else 0.0
        return amount, grace


@pytest.mark.parametrize("seed", [1, 2])
def test_no_ceiling_and_no_budget_is_overrun_by_more_than_grace(database, catalogue, clock, seed):
    clock.seconds = 20 * 3600.0
    simulation = Simulation(database, catalogue, clock, seed)
    choose = simulation.choose
    keys = [f"key{number:05}" for number in range(20)]
    with database.write() as session:
        names = {name: projects.get_or_create(session, name)[0].id for name in ("small", "large")}
        session.execute(insert(User).values(id="u1", email="a@b.c", password="", created_at=START))
        for key in keys:
            session.execute(insert(ApiKey).values(id=key, name=key, sha256=b"", created_at=START))
            if key < keys[8]:
                session.execute(insert(UserKey).values(key_id=key, user_id="u1"))
        budgets.put(session, "project", names["small"], "small", ["20/day"])
        budgets.put(session, "user", "u1", "a@b.c", ["6gpu_hours/day", "150/total"])
        budgets.put(session, "key", keys[3], keys[3], ["4/total"])
    left = 500
    while left > 0:
        size = choose.choice([1, 1, 1, 8])
        left -= size
        option = choose.choice(["max_cost", "max_gpu_hours", "time_limit", None])
        value = {"max_cost": choose.uniform(0.05, 3), "max_gpu_hours": choose.uniform(0.05, 1)}.get(option, 1800)
        project = names[choose.choice(["small", "large"])]
        spec = {} if option is None else {option: value}
        submit = partial(simulation.submit, choose.choice(keys), project, size, **spec)
        simulation.after(choose.uniform(0, 3600), submit)
    simulation.run(days=4)

    usd, gpus = (lambda job: job.price_per_hour), (lambda job: job.gpu_count)
    sets = defaultdict(list)
    for job in simulation.jobs.values():
        sets[limits.set_of(job)].append(job)
    for subject, members in sets.items():
        for cap, rate in ((members[0].spec.max_cost, usd), (members[0].spec.max_gpu_hours, gpus)):
            amount, grace = simulation.spent(lambda job, of=subject: limits.set_of(job) == of, rate)
            assert cap is None or amount <= cap + grace + 1e-3, subject
    for day in range(15):
        begin, end = day * DAY, (day + 1) * DAY
        amount, grace = simulation.spent(lambda job: job.project_id == names["small"], usd, begin, end)
        assert amount <= 20 + grace + 1e-3, day
        amount, grace = simulation.spent(lambda job: job.user_id == "u1", gpus, begin, end)
        assert amount <= 6 + grace + 1e-3, day
    amount, grace = simulation.spent(lambda job: job.submitted_by == keys[3], usd)
    assert amount <= 4 + grace + 1e-3
    assert simulation.reasons["completed"] > 100
    assert simulation.reasons["cost_limit"] > 10
    assert simulation.extended > 0
    with database.read() as session:
        states = Counter(job.state for job in map(session.merge, simulation.jobs.values()))
    assert states[JobState.RUNNING] + states[JobState.STARTING] == 0
