"""Exec sessions as the service sees them: who may open one, and what ends it."""

import json
import socket
import threading
import time
from contextlib import closing
from http.client import HTTPConnection

import pytest
from support.live_service import FakeWorker, make_job_body, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from core.jobs import queries
from core.jobs.exec import audit, channel
from core.security import api_keys
from service.exec import bridge
from service.http.connections import ConnectionTimes

TRUE = json.dumps({"command": ["true"]})


class ListeningWorker:
    """A worker's end of the channel that starts everything, and repeats what it is sent."""

    def __init__(self, root):
        (root / "workers").mkdir(exist_ok=True)
        self.requests = []
        self._listener = socket.socket(socket.AF_UNIX)
        with channel.socket_address(root, "w") as address:
            self._listener.bind(address)
        self._listener.listen()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection):
        with connection:
            self.requests.append(channel.decode_control(channel.receive(connection)[1]))
            connection.sendall(channel.encode_control({"started": True}))
            while frame := channel.receive(connection):
                kind, payload = frame
                if kind == channel.INPUT:
                    connection.sendall(channel.encode(channel.OUTPUT, b"\1" + payload))
                else:
                    connection.sendall(channel.encode_control({"exit": 3}))

    def stop(self):
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.fixture
def worker(settings):
    worker = ListeningWorker(settings.root)
    yield worker
    worker.stop()


@pytest.fixture
def job(client, stores):
    client.post("/jobs", json=make_job_body())
    fake = FakeWorker(stores)
    fake.register()
    return fake.start()


@pytest.fixture
def open_session(live_server, job):
    def opened(path="exec", job_id=job.id, sock=None, **headers):
        address = f"{live_server.url.replace('http', 'ws')}/jobs/{job_id}/{path}"
        headers = {"x-api-key": live_server.api_key} | {name.replace("_", "-"): one for name, one in headers.items()}
        given = {name: one for name, one in headers.items() if one}
        return connect(address, sock=sock, additional_headers=given, proxy=None, open_timeout=60)

    return opened


def refusal(opening):
    with pytest.raises(InvalidStatus) as refused:
        opening()
    answer = refused.value.response
    return answer.status_code, json.loads(answer.body)["error"]["name"]


def events(database, job):
    with database.read() as session:
        found = queries.events(session, job.id)
        return [(one.kind, one.detail) for one in found if one.kind in {audit.OPENED, audit.CLOSED}]


def last(connection):
    """Return the last message of the service, and the code that it closes with."""
    said = None
    try:
        while True:
            said = connection.recv(60)
    except ConnectionClosed as closed:
        return json.loads(said), closed.rcvd.code


def test_a_session_passes_input_and_output_on_and_is_recorded(open_session, worker, database, job):
    with open_session() as session:
        session.send(json.dumps({"command": ["cat", "a b"]}))
        assert json.loads(session.recv(60))["started"].startswith("e")
        session.send(b"x" * 100_000)
        assert sum(len(session.recv(60)) - 1 for _ in range(-(-100_000 // channel.CHUNK_BYTES))) == 100_000
        session.send(json.dumps({"eof": True}))
        assert last(session) == ({"exit": 3}, 1000)
    [request] = worker.requests
    assert (request["job"], request["lease"], request["command"]) == (job.id, job.lease, ["cat", "a b"])
    wait_until(lambda: len(events(database, job)) == 2)
    [(opened, what), (closed, result)] = events(database, job)
    assert (opened, closed) == (audit.OPENED, audit.CLOSED)
    assert "command cat 'a b', by API key 'tests'" in what
    assert "exit code 3, after" in result


@pytest.mark.parametrize("live_server", [ConnectionTimes(head=2.0, body=0.2)], indirect=True)
@pytest.mark.usefixtures("worker")
def test_a_session_outlasts_the_timeouts_of_the_connection_that_it_was_opened_on(open_session, live_server):
    with closing(HTTPConnection("127.0.0.1", live_server.port)) as used:
        used.request("GET", "/health")
        assert used.getresponse().read()
        with open_session(sock=used.sock) as session:
            session.send(json.dumps({"command": ["cat"]}))
            assert "started" in session.recv(60)
            time.sleep(2.2)
            session.send(b"x")
            assert session.recv(60) == b"\1x"


@pytest.mark.usefixtures("worker")
def test_a_session_does_not_make_way_for_another_connection(open_session, live_server, settings):
    with open_session() as session:
        session.send(json.dumps({"command": ["cat"]}))
        assert "started" in session.recv(60)
        settings.api.max_connections_per_client = 1
        for _ in range(2):  # the first one may replace an idle connection
            with closing(HTTPConnection("127.0.0.1", live_server.port)) as another:
                another.request("GET", "/health")
                status = another.getresponse().status
        assert status == 503
        session.send(b"x")
        assert session.recv(60) == b"\1x"


@pytest.mark.parametrize("path", ["exec", "forward?port=80", "forward/e1"])
def test_nobody_without_a_key_in_a_header_enters(open_session, stores, api_key, worker, path):
    cookie = stores.sessions.open(api_key.split("_")[1])
    assert refusal(lambda: open_session(path, x_api_key="")) == (401, "Unauthorized")
    assert refusal(lambda: open_session(path, x_api_key="gj_wrong")) == (401, "Unauthorized")
    for name in ("gradient_session_8780", "__Host-gradient_session_443"):
        assert refusal(lambda name=name: open_session(path, x_api_key="", cookie=f"{name}={cookie}"))[0] == 401
    assert worker.requests == []


@pytest.mark.parametrize("path", ["exec", "forward?port=80", "forward/e1"])
def test_no_page_of_another_site_enters(open_session, worker, path):
    assert refusal(lambda: open_session(path, origin="https://evil.example")) == (403, "Forbidden")
    assert refusal(lambda: open_session(path, origin="null")) == (403, "Forbidden")
    assert worker.requests == []


@pytest.mark.parametrize("path", ["exec", "forward?port=80", "forward/e1"])
def test_a_setting_allows_nobody(open_session, worker, settings, path):
    settings.exec.enabled = False
    assert refusal(lambda: open_session(path)) == (403, "ExecDisabled")
    assert worker.requests == []


def test_only_a_running_job_is_entered(open_session, client, stores, worker, job):
    queued = client.post("/jobs", json=make_job_body()).json()["id"]
    assert refusal(lambda: open_session(job_id=queued)) == (409, "JobNotEnterable")
    assert refusal(lambda: open_session(job_id="jnone")) == (404, "JobNotFound")
    client.post(f"/jobs/{job.id}/stop")
    assert refusal(open_session) == (409, "JobNotEnterable")
    FakeWorker(stores).end(job)
    assert refusal(open_session) == (409, "JobNotEnterable")
    assert worker.requests == []


def test_a_job_of_a_backend_without_sessions_is_not_entered(open_session, database, job):
    with database.write() as session:
        queries.get_row(session, job.id).backend = "of another version"
    assert refusal(open_session) == (409, "JobNotEnterable")


@pytest.mark.parametrize("port", ["", "?port=0", "?port=65536", "?port=x", "?port=%C2%B2", "?port=-1"])
def test_a_port_is_a_number(open_session, port):
    assert refusal(lambda: open_session(f"forward{port}")) == (400, "SpecInvalid")


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (b"true", "must be text"),
        ("{", "Invalid JSON"),
        (json.dumps({"command": []}), "command"),
        (json.dumps({"command": [""]}), "the program has no name"),
        (json.dumps({"command": ["a\0b"]}), "a NUL character"),
        ('{"command": ["\\ud800"]}', "JSON"),
        (json.dumps({"command": ["x" * 200_000]}), "longer than 128 KiB"),
        (json.dumps({"command": ["a"], "terminal": {"rows": 0, "columns": 1}}), "terminal.rows"),
        (json.dumps({"command": ["a"], "terminal": {"rows": 1, "columns": 1, "term": "x;y"}}), "terminal.term"),
        (json.dumps({"command": ["a"], "shell": True}), "shell"),
    ],
)
def test_a_command_that_is_none_is_refused(open_session, worker, database, job, message, says):
    with open_session() as session:
        session.send(message)
        said, code = last(session)
    assert says in said["refused"]
    assert code == 1008
    assert (worker.requests, events(database, job)) == ([], [])


def test_a_worker_that_does_not_answer_is_named(open_session, database, job):
    with open_session() as session:
        session.send(TRUE)
        said = last(session)[0]
    assert ("'w' cannot be reached" in said["refused"], said["name"]) == (True, "JobNotEnterable")
    wait_until(lambda: len(events(database, job)) == 2)
    assert "refused: " in events(database, job)[1][1]


@pytest.mark.usefixtures("worker")
def test_a_key_has_so_many_sessions(open_session, stores):
    stores.limits.exec_sessions.per_key = 1
    with open_session() as session:
        session.send(TRUE)
        session.recv(60)
        assert refusal(open_session) == (429, "LimitReached")
    wait_until(lambda: not stores.limits.exec_sessions.used)
    with open_session() as session:
        session.send(TRUE)
        session.recv(60)


@pytest.mark.usefixtures("worker")
def test_a_revoked_key_ends_its_sessions(open_session, stores, database, api_key, monkeypatch):
    monkeypatch.setattr(bridge, "CHECK_SECONDS", 0.05)
    with open_session() as session:
        session.send(TRUE)
        session.recv(60)
        with database.write() as writing:
            api_keys.revoke(writing, api_key.split("_")[1])
        stores.keys.clear()
        said, code = last(session)
    assert "revoked" in said["ended"]
    assert code == 1008


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("role", ["viewer", None])
def test_a_session_ends_when_its_key_loses_its_role_in_a_closed_project(
    open_session, client, api_key, bob, job, monkeypatch, role
):
    project = f"/projects/{client.get(f'/jobs/{job.id}').json()['projectId']}"
    assert client.patch(project, json={"closed": True}).json()["closed"]
    client.put(f"{project}/members/{bob[0]}", json={"role": "maintainer"})
    monkeypatch.setattr(bridge, "CHECK_SECONDS", 0.05)
    with open_session() as session:
        session.send(TRUE)
        session.recv(60)
        member = f"{project}/members/{api_key.split('_')[1]}"
        changed = {"json": {"role": role}} if role else {}
        answer = client.request("PUT" if role else "DELETE", member, headers=bob[1], **changed)
        assert answer.status_code in {200, 204}, answer.text
        said, code = last(session)
    assert ("belongs to the API key" if role else "No such job") in said["ended"]
    assert code == 1008


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(("setting", "says"), [("IDLE_SECONDS", "Nothing was sent"), ("MAX_SECONDS", "lasted")])
def test_a_session_ends_at_its_limits(open_session, monkeypatch, database, job, setting, says):
    monkeypatch.setattr(bridge, setting, 0.1)
    with open_session() as session:
        session.send(TRUE)
        session.recv(60)
        said, code = last(session)
    assert says in said["ended"]
    assert code == 1008
    wait_until(lambda: len(events(database, job)) == 2)
    assert says in events(database, job)[1][1]


@pytest.fixture
def open_terminal(live_server, job):
    """Open a terminal as a browser would that is signed in, from a page of `origin`."""

    def opened(origin, key=live_server.api_key):
        with live_server.client() as client:
            client.post("/ui/login", data={"key": key}, headers={"Origin": live_server.url})
            cookie = "; ".join(f"{name}={value}" for name, value in client.cookies.items())
        address = f"{live_server.url.replace('http', 'ws')}/jobs/{job.id}/terminal"
        headers = {"Cookie": cookie} if cookie else {}
        return connect(address, origin=origin, additional_headers=headers, proxy=None, open_timeout=60)

    return opened


def test_a_page_of_the_service_opens_a_terminal_with_its_session(live_server, open_terminal, worker, job, stores):
    with open_terminal(live_server.url) as connection:
        command = {"command": ["bash"], "terminal": {"rows": 30, "columns": 90, "term": "xterm-256color"}}
        connection.send(json.dumps(command))
        assert "started" in json.loads(connection.recv(60))
        connection.send(b"ls\r")
        assert connection.recv(60) == b"\1ls\r"
        connection.send(json.dumps({"resize": [40, 100]}))
        assert last(connection)[0] == {"exit": 3}
    assert worker.requests[0]["terminal"] == [30, 90, "xterm-256color"]
    wait_until(lambda: len(events(stores.database, job)) == 2)
    assert [kind for kind, _ in events(stores.database, job)] == [audit.OPENED, audit.CLOSED]


@pytest.mark.parametrize(
    "origin",
    [None, "null", "https://other.example", "http://127.0.0.1:1", "http://127.0.0.1.other.example", "file://"],
)
def test_a_page_of_another_site_opens_no_terminal(open_terminal, origin, stores, job):
    with pytest.raises(InvalidStatus) as refused:
        open_terminal(origin)
    assert refused.value.response.status_code == 403
    assert events(stores.database, job) == []


def test_a_terminal_needs_a_session_and_the_owners_rights(live_server, open_terminal, stores, job):
    with pytest.raises(InvalidStatus) as refused:
        open_terminal(live_server.url, key="wrong")
    assert refused.value.response.status_code == 401
    with stores.database.write() as session:
        _other, secret = api_keys.create(session, "other")
    with pytest.raises(InvalidStatus) as refused:
        open_terminal(live_server.url, key=secret)
    assert refused.value.response.status_code == 403
    assert events(stores.database, job) == []


def test_a_job_that_cannot_be_entered_says_why_instead(live_server, client, job):
    with live_server.client(headers={"Accept": "text/html"}) as browser:
        browser.post("/ui/login", data={"key": live_server.api_key}, headers={"Origin": live_server.url})
        running = browser.get(f"/ui/jobs/{job.id}").text
        assert f'id="terminal" class="button" href="/ui/jobs/{job.id}/terminal"' in running
        assert "data-terminal=" in browser.get(f"/ui/jobs/{job.id}/terminal").text
        client.post(f"/jobs/{job.id}/stop")
        assert 'id="terminal"' not in browser.get(f"/ui/jobs/{job.id}").text
        page = browser.get(f"/ui/jobs/{job.id}/terminal").text
        assert "is being stopped. Only a running job can be entered." in page
        assert "data-terminal=" not in page
        assert "xterm" not in page
