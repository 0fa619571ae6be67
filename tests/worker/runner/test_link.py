"""Sessions between a worker and the machine of a job, over a real connection."""

import errno
import os
import socket
import subprocess
import threading
from contextlib import closing, contextmanager, suppress

import pytest
from support.deployment import wait_until

from core.jobs.exec import channel
from worker.runner import link, sessions
from worker.runner.commands import start_command
from worker.runner.link import SessionServer, connect
from worker.runner.sessions import ENDED, RemoteStream
from worker.runner.streams import ExecRefused

pytestmark = pytest.mark.integration

TOKEN, OTHER = bytes(32), b"x" * 32
HERE = "127.0.0.1"


@pytest.fixture
def make_server(tmp_path):
    def make(has_ended=lambda: False):
        server = SessionServer(tmp_path, lambda request: start_command(request, os.environ, "/tmp"), has_ended)
        servers.append(server)
        return server, server.open(HERE, TOKEN)

    servers = []
    yield make
    for server in servers:
        server.end()


@contextmanager
def running(port, *command, token=TOKEN):
    request = {"session": "s", "command": command, "terminal": None}
    with closing(RemoteStream(connect(HERE, port, token, request))) as stream:
        yield stream


def test_a_command_has_its_streams_and_its_exit_code(make_server):
    _, port = make_server()
    with running(port, "sh", "-c", "cat; echo bad >&2; exit 7") as stream:
        stream.write(b"typed")
        stream.end_input()
        assert sorted(stream.outputs()) == [(channel.STDOUT, b"typed"), (channel.STDERR, b"bad\n")]
        assert stream.exit_code() == 7


def test_who_does_not_know_the_token_gets_in_on_neither_side(make_server):
    _, port = make_server()
    with pytest.raises(ExecRefused, match="it does not know the job's token"), running(port, "true", token=OTHER):
        pass
    with running(port, "true") as stream:
        assert (list(stream.outputs()), stream.exit_code()) == ([], 0)


def test_a_worker_sends_no_command_to_a_machine_that_is_not_the_jobs():
    """Another program may have the port."""
    said = b""

    def pretend():
        nonlocal said
        with listener.accept()[0] as connection:
            connection.sendall(connection.recv(64) + bytes(32))  # what it was sent, and no proof
            while data := connection.recv(1000):
                said += data

    with socket.create_server((HERE, 0)) as listener:
        thread = threading.Thread(target=pretend)
        thread.start()
        with pytest.raises(ExecRefused, match="token"):
            connect(HERE, listener.getsockname()[1], TOKEN, {"command": ["secret"]})
        thread.join()
    assert b"secret" not in said
    assert TOKEN not in said


@pytest.mark.parametrize(
    "said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(64), bytes(200)], ids=["nothing", "HTTP", "zeros", "many zeros"]
)
def test_a_stranger_who_connects_disturbs_no_session(make_server, said):
    _, port = make_server()
    with running(port, "cat") as stream, socket.create_connection((HERE, port)) as stranger:
        answer = b""
        with suppress(OSError):  # it may be closed before all was sent
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            while data := stranger.recv(1000):
                answer += data
        assert len(answer) <= 64, "a number and a proof, nothing else"
        stream.write(b"still here")
        assert next(stream.outputs()) == (channel.STDOUT, b"still here")


@pytest.mark.parametrize(
    "last",
    [
        b"",
        b"\0\xff\xff\xff\xff",
        channel.encode(channel.CONTROL, b"[" * 10_000),
        channel.encode_control([]),
        channel.encode_control({"exit": "0"}),
        channel.encode_control({"exit": True}),
        channel.encode_control({"exit": 10**9}),
        channel.encode_control({"exit": -1}),
    ],
)
def test_whatever_a_machine_sends_last_an_exit_code_is_one_or_absent(last):
    ours, theirs = socket.socketpair()
    stream = RemoteStream(ours)
    with theirs:
        theirs.sendall(channel.encode(channel.OUTPUT, b"\x07said") + channel.encode(channel.OUTPUT, b"") + last)
    assert list(stream.outputs()) == [(channel.STDOUT, b"said"), (channel.STDOUT, b"")]
    with pytest.raises(ExecRefused, match="connection to the job's machine was lost"):
        stream.exit_code()


@pytest.mark.parametrize("how", ["end", "kill"])
def test_the_end_of_the_job_is_the_end_of_its_sessions(make_server, how):
    server, port = make_server(has_ended=lambda: True)
    command = "trap '' HUP; echo up; while :; do sleep 0.1; done" if how == "end" else "echo up; kill -KILL $$"
    with running(port, "sh", "-c", command) as stream:
        outputs = stream.outputs()
        assert next(outputs) == (channel.STDOUT, b"up\n")
        if how == "end":
            server.end()
        assert list(outputs) == []
        with pytest.raises(ExecRefused, match=ENDED):
            stream.exit_code()


def test_a_command_ends_with_its_client(make_server, tmp_path):
    _, port = make_server()
    with running(port, "sh", "-c", f"echo $$ >{tmp_path}/pid; trap '' HUP; while :; do sleep 0.1; done"):
        pid = wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the command")
    wait_until(lambda: subprocess.run(["kill", "-0", pid.strip()], check=False, stderr=-3).returncode, "its end")


def test_the_bytes_of_a_port_go_both_ways_and_each_may_end_first(make_server):
    server, port = make_server()
    with (
        socket.create_server((HERE, 0)) as listener,
        connect(HERE, port, TOKEN, {"port": listener.getsockname()[1]}) as ours,
    ):
        theirs, _ = listener.accept()
        with theirs, theirs.makefile("rb") as received, ours.makefile("rb") as answered:
            ours.sendall(b"x" * 3_000_000)
            ours.shutdown(socket.SHUT_WR)
            assert len(received.read()) == 3_000_000
            theirs.sendall(b"answer")
            assert answered.read(6) == b"answer"
            server.end()
            assert answered.read() == b""
    with pytest.raises(ExecRefused, match="Nothing in the job listens on port 1"):
        connect(HERE, port, TOKEN, {"port": 1})


def test_a_server_that_begins_again_has_the_port_that_workers_know(make_server, tmp_path, monkeypatch):
    with socket.create_server((HERE, 0)) as taken:
        monkeypatch.setattr(link, "PORT", taken.getsockname()[1])
        _, port = make_server()
        assert port != link.PORT
    with socket.create_server((HERE, 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "session_port").write_text(f"{port}\n")
        assert make_server()[1] == port

    def enter():
        try:
            with running(port, "true") as stream:
                return not list(stream.outputs())
        except ExecRefused:
            return False

    wait_until(enter, "the port to be free")


def test_an_address_that_the_machine_does_not_have_costs_the_sessions_only(tmp_path):
    server = SessionServer(tmp_path, None, None)
    assert server.open("192.0.2.1", TOKEN) == 0


def test_a_refusal_of_a_machine_is_a_line_to_print(make_server, monkeypatch):
    def refuse(_):
        raise ExecRefused("no\x1b[31m\n\ud800" + "x" * 5000)

    server, port = make_server()
    monkeypatch.setattr(server, "_run", refuse)
    with pytest.raises(ExecRefused) as refused, running(port, "true"):
        pass
    assert str(refused.value) == "no?[31m??" + "x" * 991


def test_a_machine_that_is_silent_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(link, "_CONNECT_SECONDS", 0.2)
    with socket.create_server((HERE, 0)) as listener, pytest.raises(ExecRefused, match="does not answer"):
        connect(HERE, listener.getsockname()[1], TOKEN, {})


def test_a_moment_without_free_descriptors_does_not_end_the_listener(tmp_path, monkeypatch):
    class Listener(socket.socket):
        def accept(self):
            if not refused:
                refused.append(1)
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    def serve(connection):
        with connection:
            connection.sendall(b"served")

    refused = []
    monkeypatch.setattr(sessions, "ACCEPT_PAUSE_SECONDS", 0.01)
    with Listener(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        thread = threading.Thread(target=sessions.accept_all, args=(server, serve, "session"), daemon=True)
        thread.start()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(tmp_path / "s"))
            assert connection.recv(6) == b"served"
        server.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert not thread.is_alive()
