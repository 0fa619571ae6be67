"""Ceilings and budgets under load: 20 clients submit over HTTP at once while workers claim, run jobs and are killed.

The database has a simulated clock. A list of what ran when, kept beside it, says what was spent.
"""

import heapq
import random
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import count

import pytest
from sqlalchemy import insert, select
from support.database_clock import MIDNIGHT, simulated_clock
from support.live_service import make_job_body

from core.db.models.credentials import User
from core.db.models.jobs import Job
from core.jobs import lifecycle
from core.jobs.costs import budgets, limits
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState
from core.settings.worker import WorkerSettings

DAY = 86400
GRACE = 30
CLIENTS, ROUNDS = 20, 15
MACHINES = ("V100", "A100", "P4000")


@pytest.fixture
def settings(settings):
    """Let the service call no worker lost: their hours pass in seconds."""
    return settings.model_copy(update={"worker": WorkerSettings(lost_after_seconds=10**6)})


@pytest.fixture
def clock(database):
    with simulated_clock(database) as clock:
        clock.seconds = 20 * 3600.0
        yield clock


class Client:
    """A client with a key of its own, in a thread of its own."""

    def __init__(self, http, number, seed):
        self.http, self.choose = http, random.Random(100 * seed + number)  # noqa: S311 - of a test

    def submit(self):
        """Submit a job or an array; return how many jobs were taken, and how many refused for a budget."""
        choose = self.choose
        option = choose.choice(["maxCost", "maxGpuHours", "timeLimit", None])
        value = {"maxCost": choose.uniform(0.05, 3), "maxGpuHours": choose.uniform(0.05, 1)}.get(option, 1800)
        fields = {"project": choose.choice(["small", "large"]), "machineType": choose.choice(MACHINES)}
        fields |= {"stopGrace": GRACE, "maxAttempts": 3} | ({} if option is None else {option: value})
        size = choose.choice([1, 1, 1, 8])
        array = {"array": f"1-{size}%4"} if size > 1 else {}
        status = self.http.post("/jobs", json=make_job_body(**fields, **array)).status_code
        assert status in {201, 402}
        return (size, 0) if status == 201 else (0, size)


class Simulation:
    """Clients that submit, workers that run jobs for random times and are killed, and a list of all runs."""

    def __init__(self, database, clock, clients, seed):
        self.database, self.clock, self.clients = database, clock, clients
        self.choose = random.Random(seed)  # noqa: S311 - of a test
        self.events, self.order = [], count()
        self.runs, self.stops, self.reasons = [], Counter(), Counter()  # stops: by job
        self.taken = self.refused = self.extended = 0
        self.idle = {f"w{number}" for number in range(12)}

    def after(self, seconds, action, *arguments):
        heapq.heappush(self.events, (self.clock.seconds + seconds, next(self.order), action, arguments))

    def submit(self, pool):
        """Let all clients submit at once, while workers claim what has come."""
        answers = [pool.submit(client.submit) for client in self.clients]
        while wait(answers, 0.05).not_done:
            self.serve()
        self.taken += sum(answer.result()[0] for answer in answers)
        self.refused += sum(answer.result()[1] for answer in answers)
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


@pytest.fixture
def clients(live_server, database, add_key):
    """Clients with a key each; the first eight keys are of one user, whose budgets all of them use up together."""
    with database.write() as session:
        session.execute(insert(User).values(id="u1", email="a@b.c", password="", created_at=MIDNIGHT))
    keys = [add_key(f"key{number}", "u1" if number < 8 else None) for number in range(CLIENTS)]
    with live_server.client() as admin:
        small = admin.post("/projects", json={"name": "small"}).json()["id"]
        assert admin.patch(f"/projects/{small}", json={"budgets": ["20/day"]}).status_code == 200
    with database.write() as session:
        budgets.put(session, "user", "u1", "a@b.c", ["6gpu_hours/day", "150/total"])
        budgets.put(session, "key", keys[9][0], "key9", ["0.5/total"])
    clients = [Client(live_server.client(header), number, seed=1) for number, (_, header) in enumerate(keys)]
    yield clients, small, keys[9][0]
    for client in clients:
        client.http.close()


def test_no_ceiling_and_no_budget_is_overrun_by_more_than_grace(database, clock, clients):
    clients, small, key = clients
    simulation = Simulation(database, clock, clients, seed=1)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for number in range(ROUNDS):
            simulation.after(number * 240, simulation.submit, pool)
        simulation.run(days=2)
    assert simulation.taken >= 500
    assert simulation.refused > 0

    usd, gpus = (lambda job: job.price_per_hour), (lambda job: job.gpu_count)
    with database.read() as session:
        jobs = list(session.scalars(select(Job)))
        session.expunge_all()
    assert len(jobs) == simulation.taken
    sets = defaultdict(list)
    for job in jobs:
        sets[limits.set_of(job)].append(job)
    for subject, members in sets.items():
        for cap, rate in ((members[0].spec.max_cost, usd), (members[0].spec.max_gpu_hours, gpus)):
            amount, grace = simulation.spent(lambda job, of=subject: limits.set_of(job) == of, rate)
            assert cap is None or amount <= cap + grace + 1e-3, subject
    for day in range(4):
        begin, end = day * DAY, (day + 1) * DAY
        amount, grace = simulation.spent(lambda job: job.project_id == small, usd, begin, end)
        assert amount <= 20 + grace + 1e-3, day
        amount, grace = simulation.spent(lambda job: job.user_id == "u1", gpus, begin, end)
        assert amount <= 6 + grace + 1e-3, day
    amount, grace = simulation.spent(lambda job: job.submitted_by == key, usd)
    assert amount <= 0.5 + grace + 1e-3
    assert simulation.reasons["completed"] > 100
    assert simulation.reasons["cost_limit"] > 10
    assert simulation.extended > 0
    assert not [job for job in jobs if job.state in {JobState.RUNNING, JobState.STARTING}]
