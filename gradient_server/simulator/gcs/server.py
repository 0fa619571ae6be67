"""A Cloud Storage server for one machine, for google-cloud-storage and TensorFlow's own `gs://` client.

google-cloud-storage is pointed at `url`. TensorFlow's addresses are compiled in; but it honours a proxy and a list of
trusted authorities, so the same port answers CONNECT for Google's storage hosts, terminates TLS with a temporary
certificate and serves the same buckets. Every other host is refused.
"""

import shutil
import ssl
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from gradient_server.simulator.gcs.access import Tokens
from gradient_server.simulator.gcs.api import Hosts, StorageApi, StorageRequest, StorageResponse
from gradient_server.simulator.gcs.objects import BucketStore

HOSTS = [
    "storage.googleapis.com",
    "www.googleapis.com",
    "sts.googleapis.com",
    "iamcredentials.googleapis.com",
    "oauth2.googleapis.com",
]
"""The hosts that CONNECT is answered for."""
_MAX_REQUESTS = 200_000

_VALID_DAYS = 30


def create_authority(folder: Path, names: list[str]) -> tuple[Path, ssl.SSLContext]:
    """Create an authority and one certificate signed by it.

    The authority's private key is never stored, so it cannot sign anything else. `folder`: the folder to write
    `ca.pem`, for clients to trust, and `server.pem` to. Returns the path of the authority's certificate, and the
    server's TLS context.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Gradient Jobs simulator")])
    authority = (
        _certificate(issuer, issuer, authority_key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
    server = (
        _certificate(subject, issuer, server_key.public_key())
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    trusted, certificate = folder / "ca.pem", folder / "server.pem"
    trusted.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    certificate.touch(mode=0o600)
    certificate.write_bytes(
        server_key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + server.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return trusted, context


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
    )


class GcsSimulator:
    """The server and its buckets.

    `others`: further hosts, with what answers for each.
    """

    def __init__(self, port: int = 0, others: Hosts | None = None) -> None:
        self.buckets, self.tokens = BucketStore(), Tokens()
        self.requests: list[str] = []  # `METHOD path` of the latest requests, in order
        self._folder = Path(tempfile.mkdtemp(prefix="gradient-gcs-"))
        self.hosts = [*HOSTS, *(others or {})]
        self.ca, context = create_authority(self._folder, self.hosts)
        self.server = _Server(("127.0.0.1", port), StorageApi(self.buckets, self.tokens, others or {}), context, self)
        # It looks every 50 ms for its end, so that tests need not wait for that.
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), name="gcs", daemon=True)

    @property
    def url(self) -> str:
        """Address of the JSON API and of the proxy."""
        host, port = self.server.server_address[:2]
        return f"http://{host!s}:{port}"

    def start(self) -> "GcsSimulator":
        self._thread.start()
        return self

    def stop(self) -> None:
        if self._thread.is_alive():
            self.server.shutdown()
            self._thread.join()
        self.server.server_close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def record_request(self, request: str) -> None:
        """Add a request to `requests`, dropping the older half if there are too many."""
        self.requests.append(request)
        if len(self.requests) > _MAX_REQUESTS:
            del self.requests[: _MAX_REQUESTS // 2]

    def objects(self) -> list[str]:
        """List every object as `gs://bucket/name`."""
        return [f"gs://{bucket.name}/{name}" for bucket in self.buckets.all() for name in sorted(bucket.objects)]

    def environment(self) -> dict[str, str]:
        """Return variables that point a program's `gs://` to this server, for TensorFlow and google-cloud-storage."""
        address, authority = self.url, str(self.ca)
        return {
            # Not in lower case: gRPC reads that too, and would connect to TPUs through the proxy.
            "HTTPS_PROXY": address,
            "CURL_CA_BUNDLE": authority,
            "REQUESTS_CA_BUNDLE": authority,
            "STORAGE_EMULATOR_HOST": address,
            "NO_GCE_CHECK": "true",
            "GCS_RETRY_CONFIG_MAX_RETRIES": "3",
        }


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], api: StorageApi, context: ssl.SSLContext, simulator: GcsSimulator
    ) -> None:
        self.api, self.context, self.simulator = api, context, simulator
        super().__init__(address, StorageHandler)
        # A connection that is no longer there when it is accepted must not hold up all others, and the end.
        self.socket.settimeout(0.0)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - as socketserver declares it
        """Ignore errors of a connection: clients may disconnect at any time."""


class StorageHandler(BaseHTTPRequestHandler):
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
        if host not in self.server.simulator.hosts:
            self._send(StorageResponse(403, b"The simulator stands for Cloud Storage only.\n"))
            return
        self._tunnel = f"https://{host}"
        self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        self.request = self.server.context.wrap_socket(self.connection, server_side=True)
        self.setup()
        self.close_connection = False

    def _answer(self) -> None:
        body = self.read_body()
        self.server.simulator.record_request(f"{self.command} {self.path}")
        base = self._tunnel or f"http://{self.headers.get('host') or self.server.simulator.url[7:]}"
        # The request line of a proxied plain-HTTP request has the full URL.
        target = self.path.removeprefix(base) if self.path.startswith("http") else self.path
        headers = {name.lower(): value for name, value in self.headers.items()}
        self._send(self.server.api.answer(StorageRequest(self.command, base, target, headers, body)))

    do_GET = do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = _answer  # noqa: N815 - http.server finds methods by these names

    def read_body(self) -> bytes:
        # TensorFlow's client sends both headers, and its Content-Length is not the length of the body.
        if "chunked" in self.headers.get("transfer-encoding", "").lower():
            return b"".join(self._chunks())
        return self.rfile.read(int(self.headers.get("content-length") or 0))

    def _chunks(self) -> Iterator[bytes]:
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            yield self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline() not in {b"\r\n", b""}:
            pass

    def _send(self, answer: StorageResponse) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        if answer.status != 204:  # noqa: PLR2004 - no content
            self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server names it
        """Log nothing: requests are in `requests`."""
