"""Writes to what is stored of a job that another process has ended and removed meanwhile."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import select
from support.live_service import make_job_body

from core.db.models.jobs import PortAllocation
from core.jobs import lifecycle
from core.security import worker_tokens
from core.storage.artifacts.manifests import ArtifactFile
from core.storage.artifacts.received import Piece, pack
from service.exec.port_links import PortLinks, _Link
from service.log_stream.feed import JobFeed


@pytest.fixture
def paused(stores, monkeypatch):
    """Events: a request is about to write what it was sent, and may go on."""
    begun, released = threading.Event(), threading.Event()

    def slowly(write):
        def call(*arguments):
            begun.set()
            assert released.wait(30)
            return write(*arguments)

        return call

    monkeypatch.setattr(stores.logs, "open_writer", slowly(stores.logs.open_writer))
    monkeypatch.setattr(stores.artifacts, "receiver", slowly(stores.artifacts.receiver))
    return begun, released


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("log?offset=0", b"late\n"),
        ("artifacts", pack([Piece(ArtifactFile("late", 4, 0, None), 0, b"late")])),
    ],
)
def test_a_write_that_outlasts_the_removal_of_the_outputs_leaves_none(client, stores, worker, paused, path, body):
    begun, released = paused
    worker.register()
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    job = worker.start()
    with stores.database.write() as session:
        token = worker_tokens.create(session, job.worker)
    headers = {"Authorization": f"Bearer {token}"}
    with ThreadPoolExecutor(1) as pool:
        sent = pool.submit(client.post, f"/worker/jobs/{job_id}/1/{path}", content=body, headers=headers)
        assert begun.wait(30)
        with stores.database.write() as session:
            lifecycle.fail_lost(session, job, "worker_lost", "15 minutes")
        client.delete(f"/jobs/{job_id}").raise_for_status()
        stores.logs.remove(job_id)  # as a sweep does
        stores.artifacts.remove(job_id)
        released.set()
        assert sent.result().is_success
    left = [stores.logs.directory(job_id), stores.artifacts.folder(job_id, 1).parent.parent]
    assert [one for one in left if one.exists()] == []


def test_a_follower_that_comes_after_the_removal_of_the_log_leaves_no_folder(client, stores, worker):
    worker.register()
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    feed = JobFeed(stores, job_id)
    worker.end(worker.start())
    client.delete(f"/jobs/{job_id}").raise_for_status()
    stores.logs.remove(job_id)
    assert feed.create_folder().is_dir()  # slower than the sweep
    feed.poll()
    assert not stores.logs.directory(job_id).exists()


def test_a_link_that_is_opened_late_is_not_that_of_the_next_attempt(client, stores):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    row = {"job_id": job_id, "attempt": 2, "host": "other", "port": 9000, "internal": 80, "address": "other.example"}
    with stores.database.write() as session:
        session.add(PortAllocation(**row))
    PortLinks(stores, "w").publish(_Link(job_id, 1, 1, 80, 9000))
    with stores.database.read() as session:
        assert session.scalars(select(PortAllocation.address)).all() == ["other.example"]
