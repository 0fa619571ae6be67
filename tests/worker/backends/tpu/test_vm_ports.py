"""Ports of the worker's host that lead to a job on its TPU VM."""

import contextlib
import socket
import threading

import pytest
from support.deployment import wait_until
from support.free_port import free_port
from support.google.tpu_simulator import NO_RESOURCES, expect_launch_error

from worker.backends import port_forwarder
from worker.backends.base import PortForward
from worker.backends.port_forwarder import PortForwarder

HERE = "127.0.0.2"


def asked(port, words=b"over there"):
    """Return the answer of the program behind a port of this host: what it is sent, in capitals."""
    with contextlib.suppress(OSError), socket.create_connection((HERE, port), 60.0) as connection:
        connection.sendall(words)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while block := connection.recv(65536):
            answer += block
        return answer
    return None


ECHO = """
import os, socketserver
class Echo(socketserver.StreamRequestHandler):
    def handle(self):
        self.wfile.write(self.rfile.read().upper())
(port,) = [int(value) for name, value in os.environ.items() if name.startswith("GRADIENT_PORT_")]
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer(("127.0.0.1", port), Echo).serve_forever()
"""


@pytest.mark.integration
def test_a_port_leads_to_the_vm_until_the_job_has_ended(make_google_harness, google):
    place = make_google_harness(
        "TPU v5e", placement="vm", vm_poll_seconds=0.05, probe_seconds=60.0, unhealthy_seconds=20.0
    )
    external, internal = free_port(HERE), free_port()
    wrong = {f"GRADIENT_PORT_{internal}": str(external)}  # as for a process of the worker's host
    spec = place.spec(f"exec python3 -c '{ECHO}'", ports=(PortForward(external, internal),), env=wrong)
    handle = place.launch(spec)

    def answer():
        assert place.backend.ended(handle) is None
        return asked(external)

    assert wait_until(answer, "an answer of the job") == b"OVER THERE"
    assert asked(external, b"x" * 3_000_000) == b"X" * 3_000_000
    place.backend.ports.close(handle["name"])  # and then the worker dies
    assert asked(external) is None
    heir = place.new_instance()
    assert heir.ended(handle) is None
    assert asked(external) == b"OVER THERE"
    heir.signal(handle, grace=True)
    wait_until(lambda: heir.ended(handle), "the job to end")
    heir.destroy(handle)
    assert asked(external) is None
    assert google.cloud.remaining_resources() == NO_RESOURCES


def test_a_port_that_another_program_has_is_refused_before_anything_is_made(make_google_harness, google):
    place = make_google_harness("TPU v5e", placement="vm")
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        reason, detail = expect_launch_error(place, place.spec("true", ports=(PortForward(port, 80),)))
    assert (reason, str(port) in detail, google.made()) == ("port_taken", True, [])


def connect(_handle, port):
    return socket.create_connection(("127.0.0.1", port))


@pytest.fixture
def echo():
    """A program that answers; counts its connections."""
    listener = socket.create_server(("127.0.0.1", 0))
    held = []

    def serve():
        with contextlib.suppress(OSError):
            while True:
                held.append(listener.accept()[0])

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield listener.getsockname()[1], held
    listener.shutdown(socket.SHUT_RDWR)  # ends the wait for a connection
    thread.join(60)
    listener.close()
    for connection in held:
        connection.close()


def test_connections_end_with_the_job_and_are_limited(echo, monkeypatch):
    monkeypatch.setattr(port_forwarder, "MAX_CONNECTIONS", 2)
    internal, held = echo
    external = free_port(HERE)
    forwarder = PortForwarder(HERE, connect)
    forwarder.serve({"name": "a", "ports": [[external, internal]]})
    clients = [socket.create_connection((HERE, external), 60.0) for _ in range(2)]
    wait_until(lambda: len(held) == 2, "both connections")
    with socket.create_connection((HERE, external), 60.0) as third:
        assert third.recv(1) == b"", "one too many"
    forwarder.check("a", [PortForward(external, internal)])
    forwarder.close("a")
    for client in clients:
        client.settimeout(60.0)
        assert client.recv(1) == b""
        client.close()


def test_nothing_waits_for_a_vm_that_is_gone(echo):
    def forwarding():
        return [one for one in threading.enumerate() if one.name == "port-forward"]

    internal, held = echo  # it closes no connection, as a VM that was deleted
    external = free_port(HERE)
    forwarder = PortForwarder(HERE, connect)
    forwarder.serve({"name": "a", "ports": [[external, internal]]})
    with socket.create_connection((HERE, external), 60.0):
        wait_until(lambda: held and len(forwarding()) == 2, "both directions")
        forwarder.close("a")
        wait_until(lambda: not forwarding(), "both directions to end")


def test_a_port_that_no_worker_asks_for_is_closed(echo, monkeypatch):
    monkeypatch.setattr(port_forwarder, "UNWANTED_SECONDS", 0.3)
    external = free_port(HERE)
    forwarder = PortForwarder(HERE, connect)
    handle = {"name": "a", "ports": [[external, echo[0]]]}
    forwarder.serve(handle)
    wait_until(lambda: forwarder._open["a", external].closed, "the port to be closed")
    monkeypatch.setattr(port_forwarder, "UNWANTED_SECONDS", 120.0)
    forwarder.serve(handle)
    socket.create_connection((HERE, external), 60.0).close()
    forwarder.close("a")
