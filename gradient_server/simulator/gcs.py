"""A Cloud Storage server for one machine: what google-cloud-storage and TensorFlow's own `gs://` client speak.

google-cloud-storage is pointed at `url`. TensorFlow's addresses are compiled into it; but it honours a proxy and a
list of trusted authorities, so the same port answers CONNECT for Google's storage hosts, ends TLS with a throw-away
certificate and serves the same buckets. Every other host is refused.
"""

import shutil
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gradient_server.simulator.authority import make_authority
from gradient_server.simulator.gcs_access import Tokens
from gradient_server.simulator.gcs_api import Answer, Asked, StorageApi
from gradient_server.simulator.gcs_faults import Faults
from gradient_server.simulator.gcs_objects import Buckets, StoredObject

HOSTS = [
    "storage.googleapis.com",
    "www.googleapis.com",
    "sts.googleapis.com",
    "iamcredentials.googleapis.com",
    "oauth2.googleapis.com",
]
"""What it answers for."""
_MOST_REQUESTS = 200_000
_NO_BODY = frozenset({204, 304})


class GcsSimulator:
    """The server, its buckets, and what is to go wrong with them.

    Args:
        port: To listen on; 0 takes a free one.
        host: Address to listen on.

    Attributes:
        buckets: What there is.
        faults: What is to go wrong.
        tokens: Whose tokens there are.
        requests: `METHOD path` of the latest requests, in order.
    """

    def __init__(self, port: int = 0, host: str = "127.0.0.1") -> None:
        self.buckets, self.faults, self.tokens = Buckets(), Faults(), Tokens()
        self.requests: list[str] = []
        self._folder = Path(tempfile.mkdtemp(prefix="gradient-gcs-"))
        self.ca, context = make_authority(self._folder, HOSTS)
        api = StorageApi(self.buckets, self.tokens, self.faults)
        self._server = _Server((host, port), api, context, self)
        self._thread = threading.Thread(target=self._server.serve_forever, name="gcs-simulator", daemon=True)

    @property
    def url(self) -> str:
        """Address of the JSON API and of the proxy."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> "GcsSimulator":
        """Begin to answer."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop answering and forget everything."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def note(self, request: str) -> None:
        """Remember a request; of very many the older half is forgotten."""
        self.requests.append(request)
        if len(self.requests) > _MOST_REQUESTS:
            del self.requests[: _MOST_REQUESTS // 2]

    def objects(self) -> list[str]:
        """`gs://bucket/name` of every object there is."""
        return [f"gs://{one.bucket}/{one.name}" for one in self._every_object()]

    def environment(self, url: str | None = None, ca: str | None = None) -> dict[str, str]:
        """Variables that lead a program's `gs://` here, TensorFlow's and that of google-cloud-storage.

        Args:
            url: Where the program reaches the simulator; default: `url`.
            ca: Where the program finds `ca.pem`; default: where it is.
        """
        address, authority = url or self.url, ca or str(self.ca)
        return {
            # Not in lower case: gRPC would read that too, and look for TPUs through the proxy.
            "HTTPS_PROXY": address,
            "CURL_CA_BUNDLE": authority,
            "REQUESTS_CA_BUNDLE": authority,
            "STORAGE_EMULATOR_HOST": address,
            "NO_GCE_CHECK": "true",
            "GCS_RETRY_CONFIG_MAX_RETRIES": "3",
        }

    def _every_object(self) -> Iterator[StoredObject]:
        for bucket in self.buckets.all():
            yield from self.buckets.names(bucket.name)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], api: StorageApi, context: ssl.SSLContext, simulator: GcsSimulator
    ) -> None:
        self.api, self.context, self.simulator = api, context, simulator
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver declares it
        """Clients may go away at any time; that is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    timeout = 300
    server: _Server
    _tunnel: str | None = None

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ssl.SSLError):
            self.close_connection = True

    def finish(self) -> None:
        super().finish()
        if isinstance(self.connection, ssl.SSLSocket):
            self.connection.close()

    def do_CONNECT(self) -> None:
        host = self.path.rpartition(":")[0]
        if host not in HOSTS:
            self._send(Answer(403, b"The simulator stands for Cloud Storage only.\n"))
            return
        self._tunnel = f"https://{host}"
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.connection = self.server.context.wrap_socket(self.connection, server_side=True)
        self.rfile = self.connection.makefile("rb", -1)
        self.wfile = _Unbuffered(self.connection)  # type: ignore[assignment]  # a writer is all that is asked of it
        self.close_connection = False

    def _answer(self) -> None:
        broken = self.command in {"POST", "PUT"} and self.server.simulator.faults.breaks(self.path)
        body = self._body(broken=broken)
        self.server.simulator.note(f"{self.command} {self.path}")
        base = self._tunnel or f"http://{self.headers.get('host') or self.server.simulator.url[7:]}"
        # A proxied plain request has the whole address in its request line.
        target = self.path.removeprefix(base) if self.path.startswith("http") else self.path
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = replace(Asked.of(self.command, base, target, headers, body), broken=broken)
        answer = self.server.api.answer(asked)
        if broken:
            self.close_connection = True
        else:
            self._send(answer)

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - http.server finds methods by these names

    def _body(self, *, broken: bool) -> bytes:
        # TensorFlow's client sends both headers; the length it names is not that of what it sends.
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            body = b"".join(self._chunks())
        else:
            length = int(self.headers.get("content-length") or 0)
            return self.rfile.read(length // 2 if broken else length)
        return body[: len(body) // 2] if broken else body

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline() not in {b"\r\n", b""}:
            pass

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status not in _NO_BODY:
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server names it
        """Requests are in `requests`."""


class _Unbuffered:
    """Writes to a socket at once."""

    closed = False

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def write(self, data: bytes) -> int:
        self._connection.sendall(data)
        return len(data)

    def flush(self) -> None:
        """Nothing is held back."""

    def close(self) -> None:
        self.closed = True
