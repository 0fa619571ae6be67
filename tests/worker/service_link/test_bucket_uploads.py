"""Artifacts of a worker without keys, in the service's bucket, over a network that fails; its requests to the service
are handed over within this process."""

import hashlib
import json
import os
import threading
from datetime import timedelta

import pytest
from support.deployment import wait_until

from core.errors import StoreUnavailable
from core.storage.buckets import artifacts
from worker.service_link.artifacts import ServiceArtifacts

JOB = "jabc123"


class Link:
    """The service as the worker's link shows it."""

    def __init__(self, store):
        self._store = store
        self.requests = 0

    def read_json(self, method, path, body=None, query=None, seconds=None):
        del seconds
        receiver = self._store.receiver(JOB, 1)
        match method, path.removeprefix(f"jobs/{JOB}/1/artifacts"):
            case "POST", "/uploads":
                self.requests += 1
                return json.loads(json.dumps(receiver.sign(json.loads(body))))
            case "PUT", "":
                return receiver.take_list(body, final=query["final"])
        raise AssertionError(path)

    def request(self, method, path, body=None, query=None, seconds=None):
        del query, seconds
        assert (method, path) == ("POST", f"jobs/{JOB}/1/artifacts")
        self._store.receiver(JOB, 1).add(body)


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "attempt" / "artifacts"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(params=["s3", *(pytest.param(one, marks=pytest.mark.slow) for one in ("gcs", "azure"))])
def cloud(request):
    return request.getfixturevalue(request.param)


@pytest.fixture
def store(cloud, tmp_path):
    """The service's."""
    return cloud.make_store(tmp_path / "service")


@pytest.fixture
def link(store):
    return Link(store)


@pytest.fixture
def worker(link, tmp_path):
    return ServiceArtifacts(tmp_path / "far", link)


def read(store, path):
    with store.open(JOB, 1, path).file as file:
        return file.read()


def assert_true(store, source):
    """Check that what the service has is what the job left."""
    left = {path.relative_to(source).as_posix(): path.read_bytes() for path in source.rglob("*") if path.is_file()}
    files = {file.path: file for file in store.walk(JOB, 1)}
    assert {path: read(store, path) for path in files} == left
    assert {path: file.sha256 for path, file in files.items()} == {
        path: hashlib.sha256(content).hexdigest() for path, content in left.items()
    }


def test_every_change_reaches_the_bucket(store, worker, source, tmp_path):
    for name in ("a", "b", "c"):
        (source / name).write_bytes(name.encode())
    worker.sync(JOB, 1, source)
    assert [(file.path, file.sha256) for file in store.walk(JOB, 1)] == [("a", None), ("b", None), ("c", None)]
    (source / "b").write_bytes(b"changed")
    (source / "c").unlink()
    (source / "new\nline").write_bytes(b"odd")
    worker.sync(JOB, 1, source)
    assert read(store, "b") == b"changed"
    status = (source / "a").stat()
    with (source / "a").open("r+b") as file:
        file.write(b"A")  # of the same size and time: only the sha256 tells
    os.utime(source / "a", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert worker.close(JOB, 1, source).state == "complete"
    assert_true(store, source)
    assert [path for path in (tmp_path / "far").rglob("*") if path.is_file()] == []
    store.remove(JOB)
    assert store.last_attempt(JOB) == 0


def test_a_worker_that_lost_the_last_answer_closes_again(store, worker, link, source):
    (source / "a").write_bytes(b"alpha")
    sent = link.read_json

    def lose_the_answer(method, path, body=None, query=None, seconds=None):
        sent(method, path, body, query, seconds)
        if query == {"final": True}:
            raise StoreUnavailable("cut")
        return sent(method, path, body, query, seconds)

    link.read_json = lose_the_answer
    with pytest.raises(StoreUnavailable):
        worker.close(JOB, 1, source)
    link.read_json = sent
    assert worker.close(JOB, 1, source).files == 1
    assert_true(store, source)


def test_what_the_bucket_has_lost_is_sent_again(store, worker, source):
    for name in ("a", "b"):
        (source / name).write_bytes(name.encode() * 1000)
    worker.sync(JOB, 1, source)
    store.remove(JOB)
    (source / "b").write_bytes(b"changed")
    worker.close(JOB, 1, source)
    assert_true(store, source)


def test_a_file_too_large_for_one_request_goes_through_the_service(store, worker, source, tmp_path, monkeypatch):
    monkeypatch.setattr(artifacts, "LARGEST_PUT", 1000)
    (source / "small").write_bytes(b"s")
    (source / "large").write_bytes(os.urandom(20 << 20))
    worker.sync(JOB, 1, source)
    assert {file.path for file in store.walk(JOB, 1)} == {"small", "large"}
    (source / "large").write_bytes(os.urandom(20 << 20))
    assert worker.close(JOB, 1, source).state == "complete"
    assert_true(store, source)
    assert [path for path in (tmp_path / "service" / "store").rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("fault", ["busy", "cut", "expired", "slow"])
def test_files_arrive_over_a_line_that_fails(s3, tmp_path, source, fault):
    store = s3.make_store(tmp_path / "service")
    worker = ServiceArtifacts(tmp_path / "far", Link(store))
    (source / "large").write_bytes(os.urandom(8 << 20))
    for number in range(20):
        (source / f"{number}").write_bytes(os.urandom(100))
    if fault == "busy":
        s3.proxy.fail(503, 4, "PUT ")
    if fault == "slow":
        s3.proxy.delay = 0.01  # of each 64 KiB
    if fault == "cut":
        threading.Thread(target=cut_once, args=(s3.proxy,), daemon=True).start()
    if fault == "expired":
        s3.proxy.late = timedelta(minutes=20)
        with pytest.raises(StoreUnavailable, match=r"403.*AccessDenied"):
            worker.sync(JOB, 1, source)
        s3.proxy.late = timedelta(minutes=10)
    close_in_the_end(worker, source)
    s3.proxy.delay = 0
    assert_true(store, source)


def close_in_the_end(worker, source):
    def closed():
        try:
            return worker.close(JOB, 1, source).state
        except StoreUnavailable:  # the attempt tries again
            return None

    assert wait_until(closed, "the artifacts to be closed") == "complete"


def cut_once(proxy):
    wait_until(lambda: any("/files/large" in one for one in proxy.requests), "a file to be sent")
    proxy.reset()


def test_urls_come_many_at_a_time_and_no_secret_is_told(s3, tmp_path, source):
    link = Link(s3.make_store(tmp_path / "service"))
    worker = ServiceArtifacts(tmp_path / "far", link)
    for number in range(300):
        (source / f"{number:04}").write_bytes(b"%d" % number)
    s3.proxy.fail(403, 2, "/files/0005")
    with pytest.raises(StoreUnavailable, match="'0005'") as caught:
        worker.sync(JOB, 1, source)
    assert "Signature" not in caught.value.message
    assert len(s3.read_objects()) == 299
    assert link.requests < 10
    assert worker.sync(JOB, 1, source).files == 300


def test_a_bucket_that_is_away_is_not_tried_for_each_file(s3, tmp_path, source):
    link = Link(s3.make_store(tmp_path / "service"))
    worker = ServiceArtifacts(tmp_path / "far", link)
    for number in range(300):
        (source / f"{number:04}").write_bytes(b"%d" % number)
    s3.proxy.fail(503, 1000, "/files/")
    with pytest.raises(StoreUnavailable, match="503"):
        worker.sync(JOB, 1, source)
    assert s3.proxy.failures > 950


pytestmark = [pytest.mark.integration]
