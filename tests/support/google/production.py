"""The simulator as production reaches Google: real clients, TLS, a service account's key; the proxies are the test's.

No setting of the service names them: the variables of `environment` are those that any program behind a company's
proxy gets.
"""

import contextlib
import json
import socket
import socketserver
import threading
from functools import cache
from pathlib import Path

import grpc
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from support.google.compute_network import ComputeNetwork
from support.google.gcs_faults import FaultyGcs
from support.google.tpu_faults import ControlledTpuProject, FaultyTpuSimulator, TpuFault
from support.google.tpu_rest import answer_rest

from gradient_server.simulator.cloud import FakeDevice
from gradient_server.simulator.gcs.access import Caller
from gradient_server.simulator.tpu.vms import SimulatedVms

PROJECT = "proj"
ACCOUNT = f"worker@{PROJECT}.iam.gserviceaccount.com"
VM_ACCOUNT = f"vm@{PROJECT}.iam.gserviceaccount.com"
GENERATIONS = {
    "us-central1-b": ["v2-8", "v3-8"],
    "us-west4-a": ["v5litepod-8", "v5litepod-16"],
    "us-east5-b": ["v6e-8"],
    "us-central2-b": ["v4-8", "v4-16"],
    "us-east5-a": ["v5p-8"],
}
"""Types by zone: no zone offers all generations."""


class Google:
    """The simulator behind the names of Google's hosts, until the process ends: gRPC reads its authorities once.

    Attributes:
        storage: Cloud Storage and the token services.
        tpus: The TPU API, over gRPC and HTTPS.
        compute: The network of the project.
        vms: What runs on TPU VMs.
    """

    def __init__(self, folder: Path) -> None:
        self._device = FakeDevice().start()
        self.compute = ComputeNetwork(PROJECT)
        others = {
            "tpu.googleapis.com": lambda request: answer_rest(self.tpus, request),
            "compute.googleapis.com": lambda request: self.compute.answer(request),  # noqa: PLW0108 - `reset` replaces it
        }
        self.storage = FaultyGcs(others).start()
        self.storage.tokens.required = True
        self.tpus = FaultyTpuSimulator(tls=self.storage.ca.with_name("server.pem"))
        self.tpus.start()
        self._tunnel = _GrpcTunnel(self.tpus.port)
        self._key = folder / "key.json"
        _write_key(self._key)
        self.vms = SimulatedVms({}, lambda: self.storage.tokens.issue(Caller(VM_ACCOUNT)))
        self._vm_variables = dict(self.vms.environment)

    @property
    def cloud(self) -> ControlledTpuProject:
        """Nodes and queued resources."""
        return self.tpus.cloud

    def environment(self) -> dict[str, str]:
        """Variables of a program that reaches Google."""
        return {
            "GOOGLE_APPLICATION_CREDENTIALS": str(self._key),
            "HTTPS_PROXY": self.storage.url,
            "https_proxy": self.storage.url,
            "grpc_proxy": self._tunnel.url,
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
            "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(self.storage.ca),
            "REQUESTS_CA_BUNDLE": str(self.storage.ca),
            "SSL_CERT_FILE": str(self.storage.ca),
            "NO_GCE_CHECK": "true",
        }

    def reset(self) -> None:
        """Forget everything of an earlier test."""
        self.end_vms()
        self.clear_faults()
        for bucket in self.storage.buckets.all():
            self.storage.buckets.drop(bucket.name)
        self.storage.requests.clear()
        self.tpus.calls.clear()
        offered = {zone: list(types) for zone, types in GENERATIONS.items()}
        self.tpus.cloud = ControlledTpuProject(
            device=("127.0.0.1", self._device.port), machines=self.vms, offered=offered
        )
        self.compute = ComputeNetwork(PROJECT)
        self.vms.environment = self._vm_variables | self.environment()

    def clear_faults(self) -> None:
        self.storage.faults.clear_faults()
        self.tpus.clear_all_faults()
        self.tpus.hidden.clear()

    def end_vms(self) -> None:
        """Delete what a test has left."""
        for node in self.nodes:
            self.vms.end(node)

    def stop(self) -> None:
        self.vms.stop()
        self._tunnel.shutdown()
        self._tunnel.server_close()
        self.tpus.stop()
        self.storage.stop()
        self._device.stop()

    def node(self):
        """The only node."""
        (node,) = self.cloud.nodes(f"projects/{PROJECT}/locations/-")
        return node

    @property
    def nodes(self):
        """The full names of the nodes."""
        return self.cloud.remaining_resources()[0]

    @property
    def queued(self):
        """The queued resources."""
        return self.cloud.queued_resources(f"projects/{PROJECT}/locations/-")

    def preempt(self) -> None:
        """Take the only node away."""
        self.cloud.preempt(self.node().name.rpartition("/")[2])

    def refuse(self, method: str, code: str, message: str, times: int = 1) -> None:
        """Refuse the next call of a method of the TPU API, or every one (0)."""
        self.tpus.inject(method, TpuFault(grpc.StatusCode[code], message, times=times))

    def delay(self, method: str, seconds: float) -> None:
        """Delay the response to the next call of a method of the TPU API, which is carried out at once."""
        self.tpus.inject(method, TpuFault(seconds=seconds, done=True))

    def made(self) -> list[str]:
        """Requests that create something, in order, each with its zone."""
        return [call for call in self.tpus.calls if call.startswith("Create")]

    def objects(self, prefix: str = "") -> list[str]:
        """The names of all objects that begin so."""
        found = [name.split("/", 3)[3] for name in self.storage.objects()]
        return [name for name in found if name.startswith(prefix)]


class _GrpcTunnel(socketserver.ThreadingTCPServer):
    """A proxy from which every CONNECT leads to the TPU API."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.port = port
        super().__init__(("127.0.0.1", 0), _Tunnel)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()


class _Tunnel(socketserver.StreamRequestHandler):
    rbufsize = 0  # what follows the request is not its own

    def handle(self) -> None:
        request = self.rfile.readline()
        if not request:
            return  # a client that was killed as it connected
        host = request.split()[1]
        while self.rfile.readline().strip():
            pass
        assert host == b"tpu.googleapis.com:443"
        self.wfile.write(b"HTTP/1.1 200 OK\r\n\r\n")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.server.port)) as there:
            for end in (self.request, there):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
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


@cache
def _account_key() -> str:
    """Make a private key, once for a process; to check one of 2,048 bits at each use would take a third of a test."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - it protects nothing
    no_key = serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, no_key).decode()


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
