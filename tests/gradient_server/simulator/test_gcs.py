"""The simulator answers as Cloud Storage does where clients depend on it."""

import io
import os
import socket
import ssl

import pytest
import requests
from google.api_core.exceptions import BadRequest, NotFound, PreconditionFailed

from gradient_server.simulator.gcs.objects import crc32c


@pytest.fixture
def name(gcs):
    return gcs.new_bucket()


@pytest.fixture
def bucket(gcs, name):
    return gcs.client.bucket(name)


def test_names_are_whatever_bytes_they_are(gcs, bucket, name):
    names = ["a/b", "a b", "a#?%2F&=+", "ünï 🚀", "../up", "//", "-", "a/"]
    for one in names:
        bucket.blob(one).upload_from_string(one)
    assert {blob.name: blob.download_as_bytes().decode() for blob in gcs.client.list_blobs(name)} == {
        one: one for one in names
    }


@pytest.mark.parametrize("bad", ["new\nline", "x" * 1025, "."])
def test_names_that_google_refuses_are_refused(bucket, bad):
    with pytest.raises(BadRequest):
        bucket.blob(bad).upload_from_string(b"")


def test_lists_come_in_pages_and_folders(gcs, bucket, name):
    for number in range(25):
        bucket.blob(f"d{number % 5}/{number:02d}").upload_from_string(b"x")
    pages = list(gcs.client.list_blobs(name, page_size=10).pages)
    assert [len(list(page)) for page in pages] == [10, 10, 5]
    listing = gcs.client.list_blobs(name, delimiter="/", page_size=2)
    assert list(listing) == []
    assert sorted(listing.prefixes) == [f"d{number}/" for number in range(5)]
    assert [blob.name for blob in gcs.client.list_blobs(name, prefix="d3/")] == [
        f"d3/{number:02d}" for number in range(3, 25, 5)
    ]


def test_generations_guard_what_is_written(bucket):
    blob = bucket.blob("once")
    blob.upload_from_string(b"first", if_generation_match=0)
    with pytest.raises(PreconditionFailed):
        blob.upload_from_string(b"second", if_generation_match=0)
    old = blob.generation
    blob.upload_from_string(b"second", if_generation_match=old)
    assert blob.generation > old
    with pytest.raises(NotFound):
        bucket.blob("once", generation=old).download_as_bytes()
    assert blob.download_as_bytes() == b"second"


@pytest.mark.parametrize("size", [0, 1, 256 * 1024, 3 * 256 * 1024 + 5])
def test_resumable_uploads_of_every_size(bucket, size):
    content = os.urandom(size)
    blob = bucket.blob("large", chunk_size=256 * 1024)
    blob.upload_from_file(io.BytesIO(content))
    assert blob.download_as_bytes() == content


def test_an_expired_token_is_none(gcs, name):
    token = gcs.simulator.tokens.impersonate(gcs.simulator.tokens.caller(None), "a@b", -1)["accessToken"]
    place = f"{gcs.simulator.url}/storage/v1/b/{name}/o"
    assert requests.get(place, headers={"Authorization": f"Bearer {token}"}, timeout=60).status_code == 401


# ---- The proxy


def test_googles_hosts_are_answered_for_over_tls_and_no_others(gcs, bucket, name):
    bucket.blob("a").upload_from_string(b"hello")
    with requests.Session() as session:
        session.trust_env = False
        session.proxies = {"https": gcs.simulator.url}
        session.verify = str(gcs.simulator.ca)
        answer = session.get(f"https://storage.googleapis.com/{name}/a", timeout=60)
        assert (answer.content, answer.headers["x-goog-hash"].split(",")[0]) == (b"hello", f"crc32c={crc32c(b'hello')}")
        for host in ("example.com", "compute.googleapis.com", "storage.googleapis.com.example.com"):
            with pytest.raises(requests.exceptions.ProxyError):
                session.get(f"https://{host}/", timeout=60)
        with pytest.raises(requests.exceptions.SSLError):
            session.get(
                f"https://storage.googleapis.com/{name}/a", timeout=60, verify=ssl.get_default_verify_paths().cafile
            )


def test_a_body_in_chunks_counts_whatever_length_is_named(gcs, name):
    """TensorFlow's client names a length beside chunks, and it is not that of what it sends."""
    host, _, port = gcs.simulator.url.removeprefix("http://").partition(":")
    head = (
        f"POST /upload/storage/v1/b/{name}/o?uploadType=media&name=chunked HTTP/1.1\r\nHost: {host}\r\n"
        "Transfer-Encoding: chunked\r\nContent-Length: 3\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + b"6\r\nwhole \r\n4\r\nbody\r\n0\r\n\r\n")
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 200")
    assert gcs.read_objects(name)["chunked"] == b"whole body"
