"""The worker's side of a session, over its real socket."""

import socket

import pytest

from core.jobs import lifecycle
from core.jobs.exec import channel
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.settings import Settings
from worker.context import WorkerContext
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
