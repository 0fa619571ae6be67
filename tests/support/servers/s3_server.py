"""An S3 server that nobody here wrote, moto's, as a process; before it a network that a test can spoil."""

import contextlib
import itertools
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
import urllib3
from obstore.store import S3Store
from support.deployment import wait_until
from support.faults.proxy import Proxy
from support.free_port import free_port
from support.servers.bucket_harness import BucketHarness

KEY, SECRET = "AKIDTEST", "of-tests"
_PROGRAM = Path(sys.executable).parent / "moto_server"
_HEAD = re.compile(rb"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP/1\.1\r\n")
_bucket_numbers = itertools.count(1)


class S3Server:
    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        self._log = folder / "moto.log"

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [_PROGRAM, "-H", "127.0.0.1", "-p", str(self.port)], stdout=log, stderr=log
            )
        wait_until(self._listens, "moto to listen")

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", self.port)).close()
            return True
        return False


class S3Proxy(Proxy):
    """The way to the server; it also refuses what S3 refuses and moto accepts: other keys, and signatures that expired.

    Attributes:
        requests: `METHOD path?query` of the requests so far.
        late: What is added to its clock, for signatures.
    """

    def __init__(self, target: int) -> None:
        super().__init__(target)
        self.requests: list[str] = []
        self.late = timedelta()
        self._failures: list[tuple[int, str]] = []

    def fail(self, status: int, times: int = 1, request: str = "") -> None:
        """Answer the next requests that contain a text with a status."""
        self._failures += [(status, request)] * times

    @property
    def failures(self) -> int:
        """Number of those still to come."""
        return len(self._failures)

    def _intercept(self, client: socket.socket, server: socket.socket, data: bytes) -> bool:
        del server
        found = _HEAD.match(data)
        if found is None:
            return False
        request = f"{found[1].decode()} {found[2].decode()}"
        self.requests.append(request)
        refusal = self._refusal(request, found[2].decode(), data)
        if refusal is None:
            return False
        status, code = refusal
        _drain(client, data)
        body = f"<Error><Code>{code}</Code><Message>Refused by the test.</Message></Error>".encode()
        head = f"HTTP/1.1 {status} {code}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        client.sendall(head + (b"" if request.startswith("HEAD") else body))
        return True

    def _refusal(self, request: str, target: str, data: bytes) -> tuple[int, str] | None:
        for failure in self._failures:
            if failure[1] in request:
                self._failures.remove(failure)
                return failure[0], {403: "AccessDenied", 503: "SlowDown"}[failure[0]]
        query = {name: values[0] for name, values in parse_qs(urlsplit(target).query).items()}
        signer = re.search(rb"Credential=(\w+)/", data) or re.search(rb"Credential=(\w+)%2F", data)
        if signer is None or signer[1].decode() != KEY:
            return 403, "InvalidAccessKeyId"
        if "X-Amz-Date" in query:
            signed_at = datetime.strptime(query["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            if signed_at + timedelta(seconds=int(query["X-Amz-Expires"])) < datetime.now(UTC) + self.late:
                return 403, "AccessDenied"
        return None


def _drain(client: socket.socket, data: bytes) -> None:
    """Read the rest of a request: a client that still sends might miss the answer."""
    head, _, body = data.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    left = (int(length[1]) if length else 0) - len(body)
    client.settimeout(30)
    while left > 0 and (more := client.recv(min(left, 1 << 20))):
        left -= len(more)


class S3Harness(BucketHarness):
    """The server as one test sees it: a bucket of its own, reached through the proxy."""

    def __init__(self, server: S3Server) -> None:
        self.name = f"test-bucket-{next(_bucket_numbers)}-{time.time_ns()}"
        self.proxy = S3Proxy(server.port)
        settings = {
            "GRADIENT_STORE__URL": f"s3://{self.name}/some/prefix",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.proxy.port}",
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }
        direct = f"http://127.0.0.1:{server.port}"
        signed = (
            f"AWS4-HMAC-SHA256 Credential={KEY}/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0"
        )
        assert urllib3.request("PUT", f"{direct}/{self.name}", headers={"Authorization": signed}).status == 200
        own = S3Store(
            self.name,
            endpoint=direct,
            region="us-east-1",
            access_key_id=KEY,
            secret_access_key=SECRET,
            client_options={"allow_http": True},
        )
        super().__init__(settings, own)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One S3 server a test process."""
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Harness]:
    """A bucket, whose credentials are in the environment."""
    harness = S3Harness(s3_server)
    for name, value in harness.settings.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    yield harness
    harness.proxy.close()
