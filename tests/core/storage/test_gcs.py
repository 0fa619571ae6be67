"""Failures that only a store in a bucket can have; tests/core tests what all stores have in common."""

import hashlib
import os
import sys
import time
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from google.auth.credentials import AnonymousCredentials
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage
from google.oauth2.service_account import Credentials
from pydantic import ValidationError

from core.errors import ArtifactNotFound, ExtraMissing, StoreUnavailable
from core.settings import Settings
from core.settings.cloud import ArtifactSettings
from core.storage.artifacts.factory import open_artifacts
from core.storage.artifacts.store import DirectoryStore
from core.storage.gcs.client import open_client

JOB = "jabc123"
HEADERS = {"Content-Type": "application/octet-stream", "Content-Disposition": "attachment; filename*=UTF-8''model.bin"}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "attempt" / "artifacts"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def bucket(gcs):
    return gcs.new_bucket()


@pytest.fixture
def store(gcs, tmp_path, bucket):
    return gcs.make_store(tmp_path, bucket)


def uploads(gcs, since=0):
    return [one for one in gcs.simulator.requests[since:] if one.startswith("POST /upload") and "manifest" not in one]


def read(store, path):
    with store.open(JOB, 1, path).file as file:
        return file.read()


def test_the_settings_choose_the_store(gcs, tmp_path, bucket, source):
    settings = Settings(home=tmp_path, gcs=gcs.settings, artifacts=ArtifactSettings(url=f"gs://{bucket}/kept/here/"))
    (source / "a").write_bytes(b"alpha")
    open_artifacts(settings).close(JOB, 1, source)
    assert sorted(gcs.read_objects(bucket)) == [f"kept/here/{JOB}/1/files/a", f"kept/here/{JOB}/1/manifest.jsonl"]
    assert isinstance(open_artifacts(Settings(home=tmp_path)), DirectoryStore)


def test_a_bucket_without_googles_libraries_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "core.storage.gcs.artifacts", None)  # as if one of its own imports failed
    with pytest.raises(ExtraMissing, match="pip install"):
        open_artifacts(Settings(home=tmp_path, artifacts=ArtifactSettings(url="gs://bucket")))


@pytest.mark.parametrize("url", ["s3://bucket", "gs://", "gs://UPPER/x", "bucket/prefix", "gs://a"])
def test_addresses_of_no_bucket_are_refused(url):
    with pytest.raises(ValidationError, match="must be gs://BUCKET"):
        ArtifactSettings(url=url)


def test_names_that_no_object_can_have_are_kept_all_the_same(gcs, store, source, bucket):
    long = "/".join(["d" * 200] * 6)
    files = {"new\nline": b"1", "new%0Aline": b"2", "cr\rlf": b"3", f"{long}/x": b"4", "*?[#]": b"5", "...": b"6"}
    for name, content in files.items():
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_bytes(content)
    assert store.close(JOB, 1, source).state == "complete"
    assert {file.path: read(store, file.path) for file in store.walk(JOB, 1)} == {
        name.replace("%0A", "%250A"): content for name, content in files.items()
    }
    assert all(len(name.encode()) <= 1024 and "\n" not in name for name in gcs.read_objects(bucket))


def test_only_what_changed_is_sent_and_nothing_stays_on_this_machine(gcs, store, source, tmp_path, bucket):
    for name in ("a", "b", "c"):
        (source / name).write_bytes(name.encode())
    store.sync(JOB, 1, source)
    (source / "b").write_bytes(b"changed")
    (source / "c").unlink()
    began = len(gcs.simulator.requests)
    store.sync(JOB, 1, source)
    assert len(uploads(gcs, began)) == 2  # the file and the listing
    began = len(gcs.simulator.requests)
    store.close(JOB, 1, source)
    assert len(uploads(gcs, began)) == 1  # the manifest
    assert sorted(gcs.read_objects(bucket)) == [
        f"some/prefix/{JOB}/1/{name}" for name in ("files/a", "files/b", "manifest.jsonl")
    ]
    assert [path for path in (tmp_path / "store").rglob("*") if path.is_file()] == []
    assert list((tmp_path / "cache" / "sent").iterdir()) == []


def test_a_file_rewritten_with_its_old_time_is_sent_again_at_the_end(gcs, store, source, bucket):
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
    assert gcs.read_objects(bucket)[f"some/prefix/{JOB}/1/files/weights"] == b"new!"


@pytest.mark.parametrize("what", ["files/a", "manifest.jsonl"])
def test_what_the_bucket_refuses_is_tried_again_and_never_closed_half(gcs, store, source, bucket, what):
    for name in ("a", "b"):
        (source / name).write_bytes(name.encode())
    gcs.simulator.faults.fail(403, 3, method="UPLOAD", path=what)
    for _ in range(3):
        with pytest.raises(StoreUnavailable, match="403"):
            store.close(JOB, 1, source)
        assert not any(name.endswith("manifest.jsonl") for name in gcs.read_objects(bucket))
    began = len(gcs.simulator.requests)
    assert store.close(JOB, 1, source).files == 2
    assert [file.path for file in store.walk(JOB, 1)] == ["a", "b"]
    assert len(uploads(gcs, began)) == (2 if what == "files/a" else 1)  # what had arrived is not sent again


def test_a_large_upload_goes_on_where_it_broke_off(gcs, store, source, bucket):
    content = os.urandom(20 * 1024**2)
    (source / "large").write_bytes(content)
    gcs.simulator.faults.disconnect_uploads(2, path="upload_id")
    assert store.close(JOB, 1, source).state == "complete"
    assert gcs.read_objects(bucket)[f"some/prefix/{JOB}/1/files/large"] == content
    with store.open(JOB, 1, "large").file as file:
        file.seek(19 * 1024**2)
        assert file.read(10) == content[19 * 1024**2 :][:10]
        file.seek(-5, os.SEEK_END)
        assert file.read() == content[-5:]
        file.seek(0)
        assert hashlib.sha256(file.read()).digest() == hashlib.sha256(content).digest()


def test_a_file_that_is_replaced_while_it_is_read_breaks_off(store, source):
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


def test_removal_leaves_nothing_of_a_job_and_all_of_others(gcs, store, source, bucket):
    (source / "a").write_bytes(b"alpha")
    store.close(JOB, 1, source)
    store.sync(JOB, 2, source)
    store.close(f"{JOB}4", 1, source)
    for _ in range(2):
        store.remove(JOB)
    assert {name.split("/")[2] for name in gcs.read_objects(bucket)} == {f"{JOB}4"}


# ---- Addresses in the bucket


def signing(gcs):
    """A client whose credentials hold a key."""
    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    info = {"client_email": "signer@p.iam.gserviceaccount.com", "private_key": key.decode(), "token_uri": "unused"}
    return storage.Client(
        "p",
        Credentials.from_service_account_info(info),
        client_options={"api_endpoint": gcs.simulator.url},
        _http=AuthorizedSession(AnonymousCredentials()),
    )


def test_a_signed_address_works_for_a_while(gcs, tmp_path, source, bucket):
    gcs.client = signing(gcs)
    store = gcs.make_store(tmp_path, bucket, direct_seconds=60)
    (source / "model.bin").write_bytes(b"weights")
    store.sync(JOB, 1, source)
    assert store.link(JOB, 1, "model.bin", HEADERS) is None  # not while it may change
    store.close(JOB, 1, source)
    place = store.link(JOB, 1, "model.bin", HEADERS)
    answer = httpx.get(place)
    assert (answer.status_code, answer.content) == (200, b"weights")
    assert answer.headers["content-disposition"] == HEADERS["Content-Disposition"]
    assert parse_qs(urlsplit(place).query)["X-Goog-Expires"] == ["60"]
    old = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(time.time() - 61))
    signed_at = parse_qs(urlsplit(place).query)["X-Goog-Date"][0]
    assert httpx.get(place.replace(signed_at, old)).status_code == 403
    with pytest.raises(ArtifactNotFound):
        store.link(JOB, 1, "nothing", HEADERS)


def test_without_a_key_or_the_setting_there_are_no_addresses(gcs, tmp_path, source, bucket):
    can_sign, gcs.client = signing(gcs), open_client(gcs.settings, AnonymousCredentials())
    store = gcs.make_store(tmp_path, bucket, direct_seconds=60)
    (source / "model.bin").write_bytes(b"weights")
    store.close(JOB, 1, source)
    assert store.link(JOB, 1, "model.bin", HEADERS) is None
    gcs.client = can_sign
    assert gcs.make_store(tmp_path, bucket).link(JOB, 1, "model.bin", HEADERS) is None
