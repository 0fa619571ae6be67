"""Stores in buckets: names, faults, links; test_artifacts.py tests what all stores have in common."""

import hashlib
import os
import threading
from datetime import timedelta

import httpx
import obstore
import pytest
from obstore.store import from_url
from pydantic import ValidationError
from support.deployment import wait_until

from core.errors import ArtifactNotFound, StoreUnavailable
from core.settings import Settings
from core.settings.cloud import StoreSettings
from core.storage.artifacts.factory import open_artifacts
from core.storage.artifacts.store import DirectoryStore
from core.storage.buckets.client import translate_errors

JOB = "jabc123"
DISPOSITION = "attachment; filename*=UTF-8''model%20%C3%BC.bin"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "attempt" / "artifacts"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def store(s3, tmp_path):
    return s3.make_store(tmp_path)


@pytest.fixture(params=["gcs", "s3", pytest.param("azure", marks=pytest.mark.slow)])
def cloud(request):
    return request.getfixturevalue(request.param)


@pytest.mark.parametrize(
    ("endpoint", "cause"),
    [
        ("http://127.0.0.1:1", "tcp connect error: Connection refused"),
        ("http://nosuchhost.invalid", "dns error: failed to lookup address"),
    ],
)
def test_the_cause_of_a_failed_connection_is_told(endpoint, cause):
    config = {"endpoint": endpoint, "access_key_id": "a", "secret_access_key": "b", "region": "r"}
    options = {"client_options": {"allow_http": True}, "retry_config": {"max_retries": 0}}
    bucket = from_url("s3://b", config=config, **options)
    with pytest.raises(StoreUnavailable, match=cause) as failed, translate_errors("reading x"):
        obstore.get(bucket, "x")
    assert "{" not in failed.value.message, "no dump of the client's objects"


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("UnknownIssuer", "UnknownIssuer"), ("Other(\n OtherError(\n CaUsedAsEndEntity,\n),\n)", "CaUsedAsEndEntity")],
)
def test_a_certificate_that_is_not_trusted_is_told(fault, cause):
    """As the client dumps it."""
    dump = f"legacy::Error(\n Connect,\n Custom {{\n kind: Other,\n error: InvalidCertificate(\n {fault},\n),\n}},\n)"
    told = rf"error sending request: invalid certificate \({cause}\)$"
    with pytest.raises(StoreUnavailable, match=told), translate_errors("reading x"):
        raise OSError(f"error sending request\n\nDebug source:\n{dump}")


def read(store, path):
    with store.open(JOB, 1, path).file as file:
        return file.read()


def uploads(s3, since=0):
    """The objects that were sent, by their names below the attempt."""
    sent = (one.partition(f"/{JOB}/1/")[2] for one in s3.proxy.requests[since:] if one.startswith("PUT "))
    return sorted(one.partition("?")[0] for one in sent)


def test_the_settings_choose_the_store(s3, gcs, tmp_path, source):
    (source / "a").write_bytes(b"alpha")
    bucket = gcs.new_bucket()
    kept_in_gcs = Settings(home=tmp_path, gcs=gcs.settings, store=StoreSettings(url=f"gs://{bucket}/kept/here/"))
    open_artifacts(kept_in_gcs).close(JOB, 1, source)
    assert sorted(gcs.read_objects(bucket)) == [
        f"kept/here/artifacts/{JOB}/1/{name}" for name in ("files/a", "manifest.jsonl")
    ]
    open_artifacts(Settings(home=tmp_path, store=StoreSettings(url=s3.url))).close(JOB, 1, source)
    assert sorted(s3.read_objects()) == [f"{JOB}/1/files/a", f"{JOB}/1/manifest.jsonl"]
    assert isinstance(open_artifacts(Settings(home=tmp_path)), DirectoryStore)


@pytest.mark.parametrize(
    "url", ["s3://", "gs://UPPER/x", "bucket/prefix", "az://a", "http://bucket.host/x", "file:///x"]
)
def test_addresses_of_no_bucket_are_refused(url):
    with pytest.raises(ValidationError, match="must be s3://BUCKET"):
        StoreSettings(url=url)


def test_names_that_no_object_can_have_are_kept_all_the_same(cloud, tmp_path, source):
    store = cloud.make_store(tmp_path)
    long = "/".join(["d" * 200] * 6)
    files = {"new\nline": b"1", "new%0Aline": b"2", "cr\rlf": b"3", f"{long}/x": b"4", "*?[#]": b"5", "...": b"6"}
    files |= {"a b+c&d=ü": b"7", "tab\there": b"8", '~{"}': b"9"}
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    assert store.close(JOB, 1, source).state == "complete"
    assert {file.path: read(store, file.path) for file in store.walk(JOB, 1)} == {
        name.replace("%0A", "%250A"): content for name, content in files.items()
    }
    store.remove(JOB)
    assert store.last_attempt(JOB) == 0


def test_only_what_changed_is_sent_and_nothing_stays_on_this_machine(s3, store, source, tmp_path):
    for name in ("a", "b", "c"):
        (source / name).write_bytes(name.encode())
    store.sync(JOB, 1, source)
    (source / "b").write_bytes(b"changed")
    (source / "c").unlink()
    began = len(s3.proxy.requests)
    store.sync(JOB, 1, source)
    assert uploads(s3, began) == ["files/b", "listing.jsonl"]
    began = len(s3.proxy.requests)
    store.close(JOB, 1, source)
    assert uploads(s3, began) == ["manifest.jsonl"]
    assert sorted(s3.read_objects()) == [f"{JOB}/1/{name}" for name in ("files/a", "files/b", "manifest.jsonl")]
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert list((tmp_path / "cache" / "artifacts" / "sent").iterdir()) == []


def test_a_file_rewritten_with_its_old_time_is_sent_again_at_the_end(s3, store, source):
    path = source / "weights"
    path.write_bytes(b"old!")
    status = path.stat()
    store.sync(JOB, 1, source)
    with path.open("r+b") as file:
        file.write(b"new!")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    store.close(JOB, 1, source)
    (file,) = store.walk(JOB, 1)
    assert file.sha256 == hashlib.sha256(b"new!").hexdigest()
    assert s3.read_objects()[f"{JOB}/1/files/weights"] == b"new!"


@pytest.mark.parametrize("what", ["files/a", "manifest.jsonl"])
def test_what_the_bucket_refuses_is_tried_again_and_never_closed_half(s3, store, source, what):
    for name in ("a", "b"):
        (source / name).write_bytes(name.encode())
    s3.proxy.fail(403, 3, f"PUT /{s3.name}/some/prefix/artifacts/{JOB}/1/{what}")
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match=r"sending.*403|writing.*403"):
            store.close(JOB, 1, source)
        assert f"{JOB}/1/manifest.jsonl" not in s3.read_objects()
    began = len(s3.proxy.requests)
    assert store.close(JOB, 1, source).files == 2
    assert [file.path for file in store.walk(JOB, 1)] == ["a", "b"]
    # What had arrived is not sent again.
    assert uploads(s3, began) == (["files/a", "manifest.jsonl"] if what == "files/a" else ["manifest.jsonl"])


@pytest.mark.parametrize("fault", ["busy", "cut", "slow"])
def test_a_large_file_arrives_over_a_line_that_fails(s3, store, source, fault):
    content = os.urandom(20 << 20)
    (source / "large").write_bytes(content)
    if fault == "busy":
        s3.proxy.fail(503, 2, "uploads")
        s3.proxy.fail(503, 2, "partNumber=2")
    if fault == "slow":
        s3.proxy.delay = 0.01  # of each 64 KiB
    if fault == "cut":
        threading.Thread(target=cut_once, args=(s3.proxy,), daemon=True).start()
    assert store.close(JOB, 1, source).state == "complete"
    s3.proxy.delay = 0
    assert s3.proxy.failures == 0
    assert s3.read_objects()[f"{JOB}/1/files/large"] == content
    with store.open(JOB, 1, "large").file as file:
        file.seek(19 << 20)
        assert file.read(10) == content[19 << 20 :][:10]
        file.seek(-5, os.SEEK_END)
        assert file.read() == content[-5:]
        file.seek(0)
        assert hashlib.sha256(file.read()).digest() == hashlib.sha256(content).digest()


def cut_once(proxy):
    wait_until(lambda: any("partNumber" in one for one in proxy.requests), "a part to be sent")
    proxy.reset()


def test_a_bucket_that_is_away_costs_nothing_but_time(s3, store, source):
    (source / "a").write_bytes(b"alpha")
    s3.proxy.refuse()
    with pytest.raises(StoreUnavailable, match="bucket"):
        store.sync(JOB, 1, source)
    s3.proxy.accept()
    assert store.sync(JOB, 1, source).files == 1
    assert read(store, "a") == b"alpha"


def test_wrong_keys_are_told_without_the_key(s3, tmp_path, source, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDOTHER")
    (source / "a").write_bytes(b"alpha")
    with pytest.raises(StoreUnavailable, match="403") as caught:
        s3.make_store(tmp_path).close(JOB, 1, source)
    assert "InvalidAccessKeyId" in caught.value.message
    assert "of-tests" not in caught.value.message


def test_a_file_that_is_replaced_while_it_is_read_breaks_off(cloud, tmp_path, source):
    store = cloud.make_store(tmp_path)
    (source / "busy").write_bytes(bytes(2 * 1024**2))
    store.sync(JOB, 1, source)
    opened = store.open(JOB, 1, "busy")
    with opened.file as file:
        file.read(1000)
        (source / "other").write_bytes(b"\1" * 2 * 1024**2)
        (source / "other").rename(source / "busy")
        store.sync(JOB, 1, source)
        with pytest.raises(StoreUnavailable, match="removed or replaced"):
            file.read()


def test_a_large_file_goes_to_google_in_parts(gcs, tmp_path, source):
    content = os.urandom(20 << 20)
    (source / "large").write_bytes(content)
    gcs.simulator.faults.disconnect_uploads(1, path="partNumber=2")
    store = gcs.make_store(tmp_path)
    assert store.close(JOB, 1, source).state == "complete"
    assert read(store, "large") == content


def test_removal_leaves_nothing_of_a_job_and_all_of_others(s3, store, source):
    (source / "a").write_bytes(b"alpha")
    store.close(JOB, 1, source)
    store.sync(JOB, 2, source)
    store.close(f"{JOB}4", 1, source)
    for _ in range(2):
        store.remove(JOB)
    assert {name.split("/")[0] for name in s3.read_objects()} == {f"{JOB}4"}


# ---- Links to the bucket


def test_a_signed_link_works_for_a_while(cloud, tmp_path, source):
    store = cloud.make_store(tmp_path, gives_links=True)
    (source / "model ü.bin").write_bytes(b"weights")
    store.sync(JOB, 1, source)
    assert store.link(JOB, 1, "model ü.bin") is None  # not while it may change
    store.close(JOB, 1, source)
    answer = httpx.get(store.link(JOB, 1, "model ü.bin"))
    assert (answer.status_code, answer.content) == (200, b"weights")
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"] == DISPOSITION
    with pytest.raises(ArtifactNotFound):
        store.link(JOB, 1, "nothing")
    assert cloud.make_store(tmp_path).link(JOB, 1, "model ü.bin") is None  # not without the setting


def test_a_signed_link_expires(s3, tmp_path, source):
    store = s3.make_store(tmp_path, gives_links=True)
    (source / "model.bin").write_bytes(b"weights")
    store.close(JOB, 1, source)
    link = store.link(JOB, 1, "model.bin")
    s3.proxy.late = timedelta(minutes=4)
    assert httpx.get(link).status_code == 200
    s3.proxy.late = timedelta(minutes=6)
    assert httpx.get(link).status_code == 403
