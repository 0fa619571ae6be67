"""Bodies that strangers send: of any size, to any route, in any form. None is kept in memory or on disk."""

import contextlib
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute
from support.deployment import EMPTY_SSL_CONTEXT, Deployment
from support.live_service import make_job_body, make_zip

from core.storage.workspaces.manifest import MAX_MANIFEST_BYTES
from service.http.body_limit import DEFAULT_MAX_BYTES, MAX_JSON_BYTES

pytestmark = pytest.mark.integration

MIB = 1024**2
BOUNDARY = "edge"
PART = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{{}}"{{}}\r\n\r\n'
FORM = f"multipart/form-data; boundary={BOUNDARY}"


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Every route that there is, pages too, with some value for each part of its path."""
    pending = list(app.router.routes)
    while pending:
        route = pending.pop()
        pending += getattr(getattr(route, "original_router", None), "routes", [])
        if isinstance(route, APIRoute):
            prefix = "/original" if route.name.startswith("original_") and not route.path.startswith("/ori") else ""
            for method in route.methods:
                yield method, prefix + re.sub(r"\{[^}]*\}", "x", route.path)


class Sent:
    """A request whose body never ends; counts what of it is taken before the answer begins.

    Args:
        method: Of the request.
        path: Of the request.
        kind: Content type.
        key: API key, if it has one.
    """

    def __init__(self, method: str, path: str, kind: str, key: str | None = None) -> None:
        headers = {"host": "localhost", "content-type": kind, "transfer-encoding": "chunked"}
        headers |= {"origin": "http://localhost"} | ({"x-api-key": key} if key else {})
        self.scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "scheme": "http",
            "http_version": "1.1",
            "client": ("127.0.0.1", 1),
            "server": ("localhost", 80),
            "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
            "state": {},
        }
        self.chunk = PART.format("key", '; filename="f"').encode() if "multipart" in kind else b"{"
        self.taken = 0
        self.status = 0

    async def receive(self) -> dict:
        if not self.status:
            self.taken += len(self.chunk)
        elif self.taken > 10**9:
            return {"type": "http.disconnect"}
        else:
            self.taken += 10**8
        chunk, self.chunk = self.chunk, b"x" * 8192
        return {"type": "http.request", "body": chunk, "more_body": True}

    async def send(self, message: dict) -> None:
        if message["type"] == "http.response.start":
            self.status, self.before = message["status"], self.taken


@pytest.mark.parametrize("kind", ["application/json", FORM, "application/x-www-form-urlencoded"])
def test_no_route_takes_more_than_a_little_from_a_stranger(app, kind, monkeypatch):
    def spooled(*_: object, **__: object) -> None:
        pytest.fail("a file was made for a stranger")

    monkeypatch.setattr(tempfile, "TemporaryFile", spooled)
    asked = sorted(set(routes(app)))
    assert len(asked) > 60

    async def attack() -> None:
        for method, path in asked:
            sent = Sent(method, path, kind)
            await app(sent.scope, sent.receive, sent.send)
            assert sent.status, (method, path)
            # What is read for an answer, and what is thrown away before it.
            assert sent.before <= 2 * DEFAULT_MAX_BYTES + 4 * 8192, (method, path, sent.before)

    anyio.run(attack)


def test_with_a_key_only_uploads_are_large(app, api_key):
    large = {"/jobs", "/original/jobs/createJob"}
    largest_json = dict.fromkeys(("/workspaces/missing", "/workspaces/x"), MAX_MANIFEST_BYTES)
    more = 2 * DEFAULT_MAX_BYTES + 4 * 8192

    async def attack() -> None:
        for method, path in sorted(set(routes(app))):
            sent = Sent(method, path, FORM if path in large else "application/json", api_key)
            await app(sent.scope, sent.receive, sent.send)
            if method == "POST" and path in large:
                assert sent.before > MAX_JSON_BYTES + more or sent.status == 422, (
                    path
                )  # a form of another part is refused at once
            else:
                limit = largest_json.get(path, MAX_JSON_BYTES)
                assert sent.before <= limit + more, (method, path)

    anyio.run(attack)


def test_forms_of_pages_take_no_files(live_server):
    with httpx.Client(
        base_url=live_server.url, headers={"Origin": live_server.url}, verify=EMPTY_SSL_CONTEXT, timeout=60
    ) as browser:
        answer = browser.post("/ui/login", data={"key": live_server.api_key}, files={"f": ("f", b"x")})
        assert answer.status_code == 400
        assert browser.post("/ui/login", data={"key": live_server.api_key}).status_code == 303
        for page in ("keys", "secrets", "registries"):
            answer = browser.post(f"/ui/settings/{page}", files={"name": ("f", b"x")})
            assert answer.status_code == 400, (page, answer.text)


@pytest.mark.parametrize(
    "body",
    [
        b"".join(PART.format("x", "").encode() + b"y\r\n" for _ in range(500)),
        b"--edge\r\n" + b"a: b\r\n" * 5000,
        b"--edge\r\nContent-Disposition: form-data; name=" + b"n" * 60_000,
        b"--edge\r\n" * 5000,
        b"\r\n" * 30_000,
    ],
    ids=["parts", "headers", "name", "boundaries", "breaks"],
)
@pytest.mark.parametrize("path", ["/ui/login", "/jobs", "/jobs/createJob", "/users/login"])
def test_forms_made_to_cost_are_refused(client, live_server, path, body):
    headers = {"Content-Type": FORM, "Origin": live_server.url}
    answer = client.post(path, content=body + b"\r\n--edge--\r\n", headers=headers)
    assert 400 <= answer.status_code < 500, answer.text


def memory(pid: int) -> int:
    """Anonymous memory of a process, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def deleted_files(pid: int) -> int:
    """Bytes of nameless files in the temporary folder that a process has open."""
    total = 0
    for one in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(one).startswith(f"{tempfile.gettempdir()}/#"):  # noqa: PTH115 - no path: it is deleted
                total += one.stat().st_size
    return total


def flood(port: int, path: str, kind: str, size: int) -> bytes:
    """The first line of the answer to a body of this size, sent for as long as anybody takes it."""
    start = PART.format("key", '; filename="f"').encode() if "multipart" in kind else b'{"email": "'
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nOrigin: http://127.0.0.1:{port}\r\nContent-Type: {kind}\r\n"
        f"Content-Length: {size}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        try:
            connection.sendall(head.encode() + start)
            block = b"x" * MIB
            for _ in range(size // MIB):
                connection.sendall(block)
        except ConnectionError:
            pass
        try:
            return connection.recv(12)
        except ConnectionResetError:
            return b""


def test_huge_bodies_of_strangers_cost_no_memory_and_no_disk(tmp_path):
    deployment = Deployment(tmp_path / "home")
    try:
        api = deployment.start_api()
        port = int(deployment.cli_json["url"].rpartition(":")[2])
        deployment.request("POST", "/jobs", json=make_job_body())
        before = memory(api.pid)
        floods = (
            ("/users/login", FORM, b"413"),
            ("/users/login", "application/json", b"413"),
            ("/apiTokens/createPublic", FORM, b"413"),
            ("/ui/login", FORM, b"4"),
            ("/ui/jobs/x/clone", FORM, b"4"),
            ("/jobs", FORM, b"401"),
            ("/jobs/createJob", FORM, b"401"),
            ("/health", FORM, b"405"),
        )
        with ThreadPoolExecutor(len(floods)) as strangers:  # all at once: a refused body is discarded slowly
            answers = list(strangers.map(lambda one: flood(port, one[0], one[1], 400 * MIB), floods))
        for (path, kind, status), answer in zip(floods, answers, strict=True):
            assert not answer or answer.split()[1].startswith(status), (path, kind, answer)
        assert deleted_files(api.pid) < MIB
        assert memory(api.pid) - before < 64 * MIB
        assert deployment.request("GET", "/jobs").status_code == 200
    finally:
        deployment.stop()


def test_uploads_and_json_of_those_with_a_key_are_as_large_as_they_may(client):
    archive = make_zip({"data": os.urandom(3 * MIB)})
    form = {"spec": (None, '{"machineType": "CPU", "command": "true"}'), "workspace": ("w.zip", archive)}
    assert client.post("/jobs", files=form).status_code == 201
    query = {"machineType": "CPU", "command": "true"}
    assert client.post("/jobs/createJob/", params=query, files={"file": ("w.zip", archive)}).status_code == 200
    long = make_job_body(environment={f"V{number}": "x" * 1000 for number in range(100)})
    assert client.post("/jobs", json=long).status_code in {201, 400, 422}
    assert (
        client.post("/jobs", content=b" " * (MIB + 1), headers={"Content-Type": "application/json"}).status_code == 413
    )
