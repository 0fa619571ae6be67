"""The worker's side of a session, over its real socket."""

import errno
import socket
import threading

import pytest

from core.jobs import lifecycle
from core.jobs.exec import channel
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.settings import Settings
from worker.context import WorkerContext
from worker.exec import listener as module
from worker.exec.job_sessions import ENDED
from worker.exec.listener import ExecListener

pytestmark = [pytest.mark.integration, pytest.mark.parametrize("database", ["sqlite"], indirect=True)]


@pytest.fixture
def context(database, tmp_path):
    settings = Settings(home=tmp_path / "home", process={"sandbox": "off"})
    (settings.root / "workers").mkdir(parents=True)
    context = WorkerContext.open(settings, database, worker_name="w1", hostname="here")
    listener = ExecListener(context)
    listener.start()
    yield context
    listener.stop()


@pytest.fixture
def job(database, submit):
    submit()
    with database.write() as session:
        job = claims.claim(session, WorkerOffer("w1", "here", ("process",)))
        return lifecycle.mark_running(session, job, {})


def test_the_end_of_a_session_arrives_though_its_client_still_sends(context, job):
    with (
        context.sessions.allowed(job),
        channel.socket_address(context.settings.root, "w1") as address,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        connection.settimeout(60)
        connection.connect(address)
        request = {"session": "s", "key": "k", "port": 8000, "job": job.id, "lease": job.lease}
        connection.sendall(channel.encode_control(request))
        _, started = channel.receive(connection)
        assert channel.decode_control(started) == {"started": True}
        context.sessions.end(job.id, ENDED)
        connection.recv(1, socket.MSG_PEEK)
        for _ in range(3):  # whoever sends to a connection that is closed gets an error instead of what is unread
            connection.sendall(channel.encode_control({"eof": True}))
        _, last = channel.receive(connection)
        assert channel.decode_control(last) == {"ended": ENDED}
        assert channel.receive(connection) is None


def test_a_moment_without_free_descriptors_does_not_end_the_listener(context, job, tmp_path, monkeypatch):
    class Listener(socket.socket):
        def accept(self):
            if not refused:
                refused.append(1)
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    refused = []
    monkeypatch.setattr(module, "ACCEPT_PAUSE_SECONDS", 0.01)
    server = Listener(socket.AF_UNIX)
    with server:
        server.bind(str(tmp_path / "s"))
        server.listen()
        thread = threading.Thread(target=ExecListener(context).accept, args=(server,), daemon=True)
        thread.start()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(60)
            connection.connect(str(tmp_path / "s"))
            connection.sendall(channel.encode_control({"session": "s", "key": "k", "job": job.id, "lease": -1}))
            assert "refused" in channel.decode_control(channel.receive(connection)[1])
        server.shutdown(socket.SHUT_RDWR)
    thread.join(60)
    assert not thread.is_alive()
