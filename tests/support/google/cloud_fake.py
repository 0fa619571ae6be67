"""Google as the production settings reach it: real clients, TLS, a service account's key; only the proxy is the test's.

A CONNECT proxy with an authority of its own stands for the Internet. No setting of the service names it: the variables
of `environment` are those that any program behind a company's proxy gets.
"""

import contextlib
import json
import socket
import socketserver
import ssl
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from functools import cache
from http.server import ThreadingHTTPServer
from pathlib import Path

import grpc
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from support.google.compute_fake import ComputeService
from support.google.storage_fake import GoogleHandler, StorageState
from support.google.tpu_fake import TpuService, Vms
from support.google.tpu_simulator import FakeDevice

HOSTS = [f"{name}.googleapis.com" for name in ("tpu", "storage", "compute", "oauth2", "sts", "iamcredentials", "www")]
PROJECT = "proj"
ACCOUNT = f"worker@{PROJECT}.iam.gserviceaccount.com"
PEM, NO_KEY = serialization.Encoding.PEM, serialization.NoEncryption()


class FakeGoogleCloud:
    """The servers, and their state: `tpu`, `storage`, `compute`, `vms`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ended = threading.Event()
        self._device = FakeDevice()
        self.vms = Vms(folder / "vms")
        self.storage = StorageState()
        self.compute = ComputeService(PROJECT)
        self.tpu = TpuService(self._device.address, self.vms.run, self.vms.end)
        self.ca, self.key = folder / "ca.pem", folder / "key.json"
        self.tls, pair = _certificates(self.ca, folder)
        _write_key(self.key)
        self._grpc = grpc.server(ThreadPoolExecutor(16))
        self._grpc.add_generic_rpc_handlers([self.tpu.handler(), self.tpu.operations()])
        self.grpc_port = self._grpc.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
        self._grpc.start()
        self._https = _Https(self)
        self._proxy = _Proxy(self, self._https)
        for server in (self._proxy, self._https):
            threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        self.vms.environment = self.environment()

    def environment(self) -> dict[str, str]:
        """Variables of a program that reaches Google."""
        proxy = f"http://127.0.0.1:{self._proxy.server_address[1]}"
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.key),
            "HTTPS_PROXY": proxy,
            "https_proxy": proxy,
            "grpc_proxy": proxy,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.ca),
            "REQUESTS_CA_BUNDLE": str(self.ca),
            "SSL_CERT_FILE": str(self.ca),
            "NO_GCE_CHECK": "true",
        }

    def reset(self) -> None:
        """Forget everything of an earlier test."""
        self.vms.stop()
        state, service = StorageState(), TpuService(self._device.address, self.vms.run, self.vms.end)
        self.storage.__dict__.update(state.__dict__)
        self.tpu.__dict__.update(service.__dict__)
        self.compute = ComputeService(PROJECT)
        self.vms.environment = self.environment()

    def wait(self, seconds: float) -> None:
        """Delay an answer."""
        self.ended.wait(seconds)

    def stop(self) -> None:
        self.ended.set()
        self.vms.close()
        for server in (self._proxy, self._https):
            server.shutdown()
            server.server_close()
        self._grpc.stop(0)
        self._device.close()


class _Https(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, cloud: FakeGoogleCloud) -> None:
        self.cloud = cloud
        super().__init__(("127.0.0.1", 0), GoogleHandler)

    def get_request(self) -> tuple[ssl.SSLSocket, object]:
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.cloud.tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing: clients are killed in the middle of requests."""


class _Proxy(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, cloud: FakeGoogleCloud, https: _Https) -> None:
        self.cloud = cloud
        self.https_port = https.server_address[1]
        super().__init__(("127.0.0.1", 0), _Tunnel)


class _Tunnel(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        host = self.rfile.readline().split()[1].decode().partition(":")[0]
        while self.rfile.readline().strip():
            pass
        if host not in HOSTS:
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")
            return
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        hello = self.request.recv(8192)  # it names HTTP/2 if the client speaks gRPC
        grpc_client = host == "tpu.googleapis.com" and b"\x02h2" in hello
        port = self.server.cloud.grpc_port if grpc_client else self.server.https_port
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as there:
            for end in (self.request, there):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            there.sendall(hello)
            back = threading.Thread(target=_copy, args=(there, self.request), daemon=True)
            back.start()
            _copy(self.request, there)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    for end in (source, target):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _certificates(ca: Path, folder: Path) -> tuple[ssl.SSLContext, tuple[bytes, bytes]]:
    authority, key, certificate = _issue()
    ca.write_bytes(authority)
    (folder / "server.pem").write_bytes(key + certificate)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem")
    return context, (key, certificate)


@cache
def _issue() -> tuple[bytes, bytes, bytes]:
    """Authority, key and certificate, once for a process: gRPC reads the authorities that it trusts only once."""
    now = datetime.now(UTC)
    keys = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer, subject = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]) for name in ("Tests", HOSTS[0]))

    def certificate(name: x509.Name, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> bytes:
        made = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number()).not_valid_before(now - timedelta(days=1))
        made = made.not_valid_after(now + timedelta(days=1)).add_extension(extension, critical=False)
        return made.sign(keys[0], hashes.SHA256()).public_bytes(PEM)

    authority = certificate(issuer, keys[0], x509.BasicConstraints(ca=True, path_length=None))
    names = x509.SubjectAlternativeName([x509.DNSName(name) for name in HOSTS])
    key = keys[1].private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_KEY)
    return authority, key, certificate(subject, keys[1], names)


@cache
def _account_key() -> str:
    """Make a private key, once for a process; to check one of 2,048 bits at each use would take a third of a test."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - it protects nothing
    return key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, NO_KEY).decode()


def _write_key(path: Path) -> None:
    content = {
        "type": "service_account",
        "project_id": PROJECT,
        "private_key_id": "1",
        "private_key": _account_key(),
        "client_email": ACCOUNT,
        "client_id": "1",
        "token_uri": "https://oauth2.googleapis.com/token",
        "universe_domain": "googleapis.com",
    }
    path.write_text(json.dumps(content))


@contextlib.contextmanager
def running_google() -> Iterator[FakeGoogleCloud]:
    """Google, for as long as the block lasts."""
    with tempfile.TemporaryDirectory(prefix="google-") as folder:
        cloud = FakeGoogleCloud(Path(folder))
        try:
            yield cloud
        finally:
            cloud.stop()
