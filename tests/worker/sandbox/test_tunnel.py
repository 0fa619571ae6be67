"""The way out of a sandbox: where it leads, and what a program inside can make of it."""

import resource
import socket
import threading

import pytest

from worker.sandbox import tunnel
from worker.sandbox.tunnel import Tunnel

SOCKS = b"\x05\x01\x00" + b"\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x50"
ACCEPTED = b"\x05\x00" + b"\x05\x00\x00\x01\0\0\0\0\0\0"


@pytest.fixture
def server():
    """The destination: it says back what it is sent."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def echo(connection):
            with connection:
                while block := connection.recv(4096):
                    connection.sendall(block)

        def accept():
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=echo, args=(connection,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()
        listener.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def inside(server):
    """Connects as a program in the sandbox does."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    address = listener.getsockname()
    opened = []

    def connect():
        opened.append(socket.create_connection(address, timeout=20))
        return opened[-1]

    with Tunnel(lambda: socket.create_connection(server), 20) as way:
        way.serve(listener)
        yield connect
        for one in opened:
            one.close()


def exchanged(connection, word=b"hello"):
    connection.sendall(SOCKS + word)
    wanted, got = len(ACCEPTED) + len(word), b""
    while len(got) < wanted and (block := connection.recv(wanted - len(got))):
        got += block
    return got


def test_it_leads_to_its_destination_whatever_is_asked_for(inside):
    assert exchanged(inside()) == ACCEPTED + b"hello"


def test_a_program_that_opens_connections_without_end_gets_so_many(inside, monkeypatch):
    monkeypatch.setattr(tunnel, "_MAX_CONNECTIONS", 4)
    served = [inside() for _ in range(4)]
    assert [exchanged(one) for one in served] == [ACCEPTED + b"hello"] * 4
    assert inside().recv(1) == b"", "one too many is closed"
    served[0].close()
    for _ in range(200):  # the thread of the one that left ends in its own time
        try:
            if exchanged(inside()) == ACCEPTED + b"hello":
                break
        except ConnectionError:
            continue
    else:
        pytest.fail("a place that became free was not given again")


def test_it_works_in_a_process_with_thousands_of_open_files(inside):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 1200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    fillers = [socket.socket() for _ in range(1100)]
    try:
        assert fillers[-1].fileno() > 1024, "select() takes none above"
        assert exchanged(inside()) == ACCEPTED + b"hello"
    finally:
        for one in fillers:
            one.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
