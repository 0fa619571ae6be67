"""A job goes to the host that has its image, if that host is there and has room; no job waits for that for long."""

import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select, update
from support.deployment import TIMEOUT_SECONDS

from core.db.database import now
from core.db.models.jobs import HostImage, Job, Worker
from core.errors import StoreUnavailable
from core.jobs import lifecycle
from core.jobs.scheduling import claims, image_affinity, workers
from core.jobs.scheduling.claims import WorkerOffer

IMAGE = "team/model:1"
WAIT = 5.0


def offer(host, **has):
    return WorkerOffer(host, host, ("process",), image_wait_seconds=WAIT, **has)


@pytest.fixture
def join(database):
    """Have a host join, with images."""

    def add(host, *images, slots=4, **has):
        with database.write() as session:
            workers.register(session, offer(host, **has), boot_id="b", slots=slots)
            image_affinity.replace_host_images(session, host, images)
        return offer(host, **has)

    return add


@pytest.fixture
def needing(database, submit):
    """Submit a job that needs an image."""

    def make(image=IMAGE, **spec):
        job = submit(**spec)
        with database.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(image=image))
        return job.id

    return make


@pytest.fixture
def take(database):
    def claim(host):
        with database.read() as session:
            waits = claims.has_claimable_job(session, host)
        with database.write() as session:
            job = claims.claim(session, host)
        assert waits == (job is not None)
        return job.id if job else None

    return claim


def age(database, seconds):
    with database.write() as session:
        session.execute(update(Job).values(created_at=now(-seconds)))


def test_a_host_without_the_image_leaves_the_job_to_one_that_has_it(join, needing, take):
    without, holder = join("bare"), join("holder", IMAGE)
    job = needing()
    assert take(without) is None
    assert take(holder) == job


def test_it_is_left_for_a_moment_only(database, join, needing, take):
    without, _ = join("bare"), join("holder", IMAGE)
    job = needing()
    age(database, WAIT - 2)
    assert take(without) is None
    age(database, WAIT + 0.1)
    assert take(without) == job


def test_others_are_not_held_up_by_the_one_that_is_left(join, needing, submit, take):
    without, _ = join("bare"), join("holder", IMAGE)
    needing(priority=100)
    plain, elsewhere = submit().id, needing("nobody/has:this")
    assert [take(without) for _ in range(3)] == [plain, elsewhere, None]


@pytest.mark.parametrize(
    "no_holder",
    [
        lambda worker: worker.values(seen_at=now(-3600)),
        lambda worker: worker.values(drained_at=now()),
        lambda worker: worker.values(slots=0),
        lambda worker: worker.values(backends=["docker"]),
        lambda worker: worker.values(machine_types=["V100", "CPU 2"]),
        lambda worker: worker.values(cpus=1.0),
        lambda worker: worker.values(memory_mb=100),
    ],
    ids=["silent", "drained", "full", "other backend", "other types", "too few CPUs", "too little memory"],
)
def test_a_holder_that_cannot_take_it_is_not_waited_for(database, join, needing, take, no_holder):
    without, _ = join("bare"), join("holder", IMAGE)
    job = needing(cpus=2.0, memory_mb=512)
    assert take(without) is None
    with database.write() as session:
        session.execute(no_holder(update(Worker).where(Worker.name == "holder")))
    assert take(without) == job


def test_machine_types_are_compared_whole(join, needing, take):
    without, _ = join("bare"), join("holder", IMAGE, machine_types=("CPU", "V100"))
    needing()
    assert take(without) is None


def test_a_report_replaces_the_one_before_and_is_bounded(database):
    def reported():
        with database.read() as session:
            return sorted(session.scalars(select(HostImage.reference).where(HostImage.host == "h")))

    with database.write() as session:
        image_affinity.replace_host_images(session, "h", ["a:1", "b:1", "a:1", "x" * 600])
        image_affinity.replace_host_images(session, "other", ["a:1"])
    assert reported() == ["a:1", "b:1"]
    with database.write() as session:
        image_affinity.replace_host_images(session, "h", ["c:1"])
    assert reported() == ["c:1"]
    with database.write() as session:
        image_affinity.replace_host_images(session, "h", [f"n{number}:1" for number in range(2000)])
    assert reported() == sorted(f"n{number}:1" for number in range(image_affinity.MAX_REPORTED))


def test_under_a_rush_every_job_is_claimed_once_and_in_bounded_time(database, join, needing):
    """Hosts with and without the image claim at once; the holder is often full. Nobody starves, nothing doubles."""
    hosts = [join("bare"), join("bare2"), join("holder", IMAGE, slots=1)]
    jobs = {needing(IMAGE if number % 2 else "other/image:1") for number in range(24)}
    claimed: list[tuple[str, str]] = []
    lock, deadline = threading.Lock(), time.monotonic() + TIMEOUT_SECONDS

    def work(host):
        patient = WorkerOffer(host.worker, host.host, host.backends, image_wait_seconds=1.0)
        while len(claimed) < len(jobs) and time.monotonic() < deadline:
            try:
                with database.write() as session:
                    job = claims.claim(session, patient)
            except StoreUnavailable:  # it waited for the others for too long, on a busy machine; a worker asks again
                job = None
            if job is None:
                time.sleep(0.02)
                continue
            with lock:
                claimed.append((job.id, host.host))
            with database.write() as session:
                ended = lifecycle.mark_finishing(session, job, "completed", exit_code=0)
                lifecycle.finish(session, ended, artifacts_state="none")

    with ThreadPoolExecutor(len(hosts)) as pool:
        for done in [pool.submit(work, host) for host in hosts]:
            done.result()
    counts = Counter(job for job, _ in claimed)
    assert set(counts) == jobs
    assert set(counts.values()) == {1}
