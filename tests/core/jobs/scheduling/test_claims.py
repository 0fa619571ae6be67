"""Claims: the order of jobs, by priority, shares, quotas and free capacity."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy import select, update

from core.db.database import Database, now
from core.db.models.jobs import GpuAllocation, Job, Project
from core.errors import StoreUnavailable
from core.jobs import lifecycle
from core.jobs.scheduling import claims, workers
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.states import JobState

CPU = WorkerOffer("w", "h", ("process",))


def take(database, offer=CPU):
    with database.write() as session:
        return claims.claim(session, offer)


def taken(database, count, offer=CPU):
    """Ids of the jobs that `count` claims give, in their order."""
    return [job.id for job in (take(database, offer) for _ in range(count)) if job is not None]


def end(database, job):
    with database.write() as session:
        job = lifecycle.mark_finishing(session, job, "completed", exit_code=0)
        return lifecycle.finish(session, job, artifacts_state="none")


def limit(database, project, max_running):
    with database.write() as session:
        session.execute(update(Project).where(Project.name == project).values(max_running=max_running))


def held(database):
    with database.read() as session:
        return {(row.host, row.gpu): row.job_id for row in session.scalars(select(GpuAllocation))}


def served(database, count):
    """Yield the ids of jobs that run one after the other."""
    for _ in range(count):
        job = take(database)
        yield job.id
        end(database, job)


def test_projects_take_turns_while_the_clock_stands_still_or_goes_back(database, submit):
    many = [submit(project="many").id for _ in range(3)]
    few = [submit(project="few").id for _ in range(3)]
    order = []
    for job_id in served(database, 6):
        order.append(job_id)
        if len(order) == 1:
            ahead = now(3600)  # the clock goes back by an hour; all claims after it are before this time
            with database.write() as session:
                session.execute(update(Project).where(Project.name == "many").values(last_claimed_at=ahead))
    assert order == [job for pair in zip(many, few, strict=True) for job in pair]


def test_two_jobs_never_have_the_same_gpu(database, submit):
    host = WorkerOffer("w", "h", ("process",), gpus=("0", "1"))
    first, second, third = (submit(machine="V100").id for _ in range(3))
    jobs = [take(database, host) for _ in range(3)]
    assert [job and job.id for job in jobs] == [first, second, None]
    assert held(database) == {("h", "0"): first, ("h", "1"): second}
    with database.read() as session:
        assert [claims.gpus_of(session, job) for job in jobs[:2]] == [("0",), ("1",)]
    end(database, jobs[0])
    assert held(database) == {("h", "1"): second}
    assert take(database, host).id == third
    assert held(database)["h", "0"] == third


def test_gpus_of_another_host_are_its_own(database, submit):
    jobs = [submit(machine="V100").id for _ in range(2)]
    assert taken(database, 1, WorkerOffer("w1", "h1", ("process",), gpus=("0",))) == jobs[:1]
    assert taken(database, 1, WorkerOffer("w2", "h2", ("process",), gpus=("0",))) == jobs[1:]


def test_what_does_not_fit_is_passed_over(database, submit):
    """A job that needs what is taken, or what there never is, keeps no other one waiting."""
    submit(machine="V100", priority=100)
    submit(cpus=64.0, priority=100)
    submit(memory_mb=10**6, priority=100)
    small = [submit(cpus=2.0, memory_mb=512).id for _ in range(3)]
    host = WorkerOffer("w", "h", ("process",), gpus=(), cpus=4.0, memory_mb=2048)
    assert taken(database, 6, host) == small[:2]
    with database.read() as session:
        assert not claims.has_claimable_job(session, host)


def test_a_worker_takes_only_the_machine_types_it_offers(database, submit):
    submit(machine="CPU")
    wanted = submit(machine="T4").id
    assert taken(database, 3, WorkerOffer("w", "h", ("process",), machine_types=("T4", "V100"))) == [wanted]


def test_a_drained_worker_takes_nothing_until_it_is_resumed(database, submit):
    job = submit()
    with database.write() as session:
        workers.register(session, CPU, boot_id="b", slots=1)
        workers.set_drained(session, "w", drained=True)
    assert take(database) is None
    with database.write() as session:  # a restart changes nothing about it
        workers.register(session, CPU, boot_id="b", slots=1)
    assert take(database) is None
    assert taken(database, 1, WorkerOffer("w2", "h", ("process",))) == [job.id]
    again = submit()
    with database.write() as session:
        workers.set_drained(session, "w", drained=False)
    assert taken(database, 1) == [again.id]


def test_many_claims_at_once_give_each_job_once(database, submit):
    """Twenty workers with two GPUs each; what is claimed, shared and held is exact all the same."""
    jobs = 120
    everything = {submit(machine="V100", project=f"p{number % 3}").id for number in range(jobs)}
    limit(database, "p0", 7)
    start = threading.Barrier(20)
    most = []

    def work(number):
        # As in a fleet, each worker has connections of its own; SQLite has one writer in any case.
        own = database if database.is_sqlite else Database(database.url)
        try:
            return claim_and_end(own, number)
        finally:
            if own is not database:
                own.close()

    def claim_and_end(database, number):
        offer = WorkerOffer(f"w{number}", f"h{number}", ("process",), gpus=("0", "1"))
        start.wait()
        mine = []
        while len(mine) < 2 * jobs:
            try:
                job = take(database, offer)
            except StoreUnavailable:  # it waited for the others for too long, on a busy machine; a worker asks again
                continue
            if job is None:
                break
            mine.append(job)
            if len(mine) % 2 == 0:
                with database.read() as session:
                    running = Counter(session.scalars(select(Job.project_id).where(Job.state == JobState.STARTING)))
                    most.append(running)
                for one in mine[-2:]:
                    end(database, one)
        return mine

    with ThreadPoolExecutor(20) as pool:
        claimed = [job for mine in pool.map(work, range(20)) for job in mine]
    rest = []
    while (job := take(database)) is not None:  # p0's last ones, which were over its quota when the others ended
        rest.append(job)
        end(database, job)
    ids = [job.id for job in claimed + rest]
    assert len(ids) == len(set(ids)), "two workers got the same job"
    with database.read() as session:
        p0 = session.scalar(select(Project.id).where(Project.name == "p0"))
        unclaimed = set(session.scalars(select(Job.id).where(Job.state == JobState.QUEUED)))
    assert set(ids) | unclaimed == everything
    assert max(running[p0] for running in most) <= 7
