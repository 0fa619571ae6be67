"""Logs as pages, raw bytes and live streams."""

import json
import random
import threading
import time

import httpx
import pytest
from support.live_service import make_job_body, wait_until


@pytest.fixture
def job_id(client):
    return client.post("/jobs", json=make_job_body()).json()["id"]


@pytest.fixture
def running(job_id, worker):
    job = worker.start()
    assert job.id == job_id
    return job


def events_in(response):
    """The events of a stream as they come: (name, id, data)."""
    name, number, data = None, None, None
    for line in response.iter_lines():
        key, _, value = line.partition(": ")
        if key == "event":
            name = value
        elif key == "id":
            number = int(value)
        elif key == "data":
            data = json.loads(value)
        elif not line and name:
            yield name, number, data
            name, number, data = None, None, None


class Listener:
    """Follows a log in a thread until its end."""

    def __init__(self, live_server, job_id, **headers):
        self.events = []
        self.error = None
        self._live, self._job_id, self._headers = live_server, job_id, headers
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            with self._live.client() as client, follow(client, self._job_id, **self._headers) as response:
                assert response.status_code == 200
                self.events.extend(events_in(response))
        except httpx.HTTPError as error:
            self.error = error

    def named(self, name):
        return [data for found, _, data in list(self.events) if found == name]


class Growing(Listener):
    """The same, with its events at hand while they come."""

    def _run(self):
        with self._live.client() as client, follow(client, self._job_id, **self._headers) as response:
            for event in events_in(response):
                self.events.append(event)


def follow(client, job_id, query="", **headers):
    return client.stream("GET", f"/jobs/{job_id}/logs{query}", headers={"Accept": "text/event-stream", **headers})


def test_pages_are_gapless_and_know_when_they_are_complete(client, job_id, running, stores, worker):
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"one\ntwo\nthree\nfou", 1_700_000_000_123)
    first = client.get(f"/jobs/{job_id}/logs", params={"limit": 2}).json()
    assert first["lines"] == [
        {"line": 1, "timestamp": "2023-11-14T22:13:20.123Z", "message": "one"},
        {"line": 2, "timestamp": "2023-11-14T22:13:20.123Z", "message": "two"},
    ]
    assert first["complete"] is False
    rest = client.get(f"/jobs/{job_id}/logs", params={"line": 2}).json()
    assert ([row["message"] for row in rest["lines"]], rest["complete"]) == (["three"], False)
    worker.end(running, exit_code=0)
    rest = client.get(f"/jobs/{job_id}/logs", params={"line": 3}).json()
    assert ([row["message"] for row in rest["lines"]], rest["complete"]) == (["fou"], True)
    page = client.get(f"/jobs/{job_id}/logs", params={"limit": 3}).json()
    assert page["complete"] is False
    tail = client.get(f"/jobs/{job_id}/logs", params={"tail": 2}).json()
    assert [row["line"] for row in tail["lines"]] == [3, 4]
    past = client.get(f"/jobs/{job_id}/logs", params={"line": 99}).json()
    assert past == {"lines": [], "total": 4, "complete": True, "partial": None, "removed": None}


@pytest.mark.parametrize("query", ["line=-1", "line=x", "limit=0", "limit=100000", "tail=-1", "lines=3"])
def test_bad_places_in_a_log_are_refused(client, job_id, query):
    answer = client.get(f"/jobs/{job_id}/logs?{query}")
    assert answer.status_code == 422
    assert answer.json()["error"]["field"] == query.partition("=")[0]


def test_text_is_found_in_a_log(client, job_id, running, stores, worker):
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"Epoch 1\nloss: nan\nepoch 2\nepo", 1000)
    address = f"/jobs/{job_id}/logs/search"
    found = client.get(address, params={"query": "epoch", "limit": 1}).json()
    assert found == {"lines": [1], "searchedTo": 1, "complete": False, "texts": None}
    found = client.get(address, params={"query": "epoch", "line": 1}).json()
    assert found == {"lines": [3], "searchedTo": 3, "complete": True, "texts": None}
    assert client.get(address, params={"query": "epoch", "matchCase": True}).json()["lines"] == [3]
    worker.end(running, exit_code=0)
    assert client.get(address, params={"query": "epo"}).json()["lines"] == [1, 3, 4]
    texts = client.get(address, params={"errors": True, "texts": True}).json()
    assert (texts["lines"], texts["texts"]) == ([2], ["loss: nan"])
    for wrong in ({}, {"query": "x", "errors": True}):
        assert client.get(address, params=wrong).json()["error"]["message"] == "Give either `query` or `errors=true`."
    for query in ("", "a\nb", "x" * 201):
        assert client.get(address, params={"query": query}).json()["error"]["field"] == "query"


@pytest.mark.parametrize("last", ["-1", "x", "9" * 30, "0" * 20 + "9" * 5000, "1.5"])
def test_a_bad_last_event_id_is_refused(client, job_id, last):
    with follow(client, job_id, **{"Last-Event-ID": last}) as response:
        assert response.status_code == 422
        response.read()
    assert response.json()["error"]["field"] == "Last-Event-ID"


@pytest.mark.usefixtures("running")
def test_raw_bytes_in_parts(client, job_id, stores):
    raw = b"a\rb\r\x00\xff\n" * 1000
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(raw, 1)
    whole = client.get(f"/jobs/{job_id}/logs/raw")
    assert (whole.content, whole.headers["content-length"]) == (raw, str(len(raw)))
    assert whole.headers["content-disposition"].startswith("attachment")
    part = client.get(f"/jobs/{job_id}/logs/raw", headers={"Range": "bytes=10-19"})
    assert (part.status_code, part.content) == (206, raw[10:20])
    assert part.headers["content-range"] == f"bytes 10-19/{len(raw)}"
    past = client.get(f"/jobs/{job_id}/logs/raw", headers={"Range": f"bytes={len(raw)}-"})
    assert (past.status_code, past.headers["content-range"]) == (416, f"bytes */{len(raw)}")
    assert past.json()["error"]["name"] == "RangeNotSatisfiable"
    shown = client.get(f"/jobs/{job_id}/logs/raw?inline=1")
    assert shown.headers["content-type"] == "text/plain; charset=utf-8"


def test_a_log_is_followed_from_before_its_first_line_to_its_end(live_server, job_id, worker, stores):
    listener = Growing(live_server, job_id)
    wait_until(lambda: listener.named("phase"))
    job = worker.start()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"first\n", 1)
        wait_until(lambda: len(listener.named("line")) == 1)
        for step in (1, 2):
            log.append(f"\rstep {step}".encode(), 2)
            wait_until(lambda shown=f"step {step}": {"message": shown} in listener.named("partial"))
        log.append(b"\rstep 3\nlast, without an end", 3)
        wait_until(lambda: len(listener.named("line")) == 2)
    worker.end(job, "exit_nonzero", exit_code=3, detail="exit code 3")
    listener.thread.join(60)
    lines = listener.named("line")
    assert [row["message"] for row in lines] == ["first", "step 3", "last, without an end"]
    assert [row["line"] for row in lines] == [1, 2, 3]
    assert [number for name, number, _ in listener.events if name == "line"] == [1, 2, 3]
    assert {number for name, number, _ in listener.events if name != "line"} == {None}
    assert [phase["state"] for phase in listener.named("phase")][-1] == "Failed"
    name, _, end = listener.events[-1]
    assert (name, end["state"], end["exitCode"], end["reason"]) == ("end", "Failed", 3, "exit_nonzero")


@pytest.mark.usefixtures("running")
def test_a_line_that_is_written_in_parts_is_not_shown_unfinished(live_server, job_id, stores, monkeypatch):
    monkeypatch.setattr("service.log_stream.feed.OPEN_SECONDS", 2.0)  # on a busy machine the parts may lie far apart
    listener = Growing(live_server, job_id)
    with stores.logs.open_writer(job_id, 1) as log:
        for step in range(30):
            log.append(b"step", 1)
            time.sleep(0.02)
            log.append(f" {step}\n".encode(), 1)
        log.append(b"waits", 1)
        wait_until(lambda: listener.named("partial") == [{"message": "waits"}])
    assert len(listener.named("line")) == 30


@pytest.mark.usefixtures("running")
def test_a_line_is_seen_at_once_and_not_at_the_next_look_at_the_row(live_server, client, job_id, stores, monkeypatch):
    monkeypatch.setattr("service.log_stream.feed.ROW_POLL_SECONDS", 3600.0)
    listener = Growing(live_server, job_id)
    wait_until(lambda: listener.named("phase"))
    with stores.logs.open_writer(job_id, 1) as log:
        for number in range(1, 11):
            log.append(b"line\n", number * 1000)
            wait_until(lambda number=number: len(listener.named("line")) == number)
    client.post(f"/jobs/{job_id}/stop")
    live_server.stop()
    listener.thread.join(60)


def test_fifty_broken_connections_lose_and_repeat_nothing(client, job_id, running, stores, worker):
    chance = random.Random(7)  # noqa: S311 - a repeatable test
    expected = [f"line {number} {'x' * chance.randrange(300)}" for number in range(3000)]

    def write():
        with stores.logs.open_writer(job_id, 1) as log:
            for at in range(0, len(expected), 10):
                text = "".join(line + "\n" for line in expected[at : at + 10]).encode()
                cut = chance.randrange(len(text))
                log.append(text[:cut], at)
                log.append(text[cut:], at)
                time.sleep(0.002)
        worker.end(running, exit_code=0)

    writer = threading.Thread(target=write)
    writer.start()
    got = []
    for _ in range(50):
        wanted = chance.randrange(1, 60)
        with follow(client, job_id, **{"Last-Event-ID": str(got[-1][0] if got else 0)}) as response:
            for name, number, data in events_in(response):
                if name == "line":
                    got.append((number, data["message"]))
                    wanted -= 1
                if not wanted:
                    break
    with follow(client, job_id, f"?line={got[-1][0]}") as response:
        got += [(number, data["message"]) for name, number, data in events_in(response) if name == "line"]
    writer.join(60)
    assert [number for number, _ in got] == list(range(1, len(expected) + 1))
    assert [message for _, message in got] == expected


def test_a_stream_can_begin_at_the_tail(client, job_id, running, stores, worker):
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"".join(b"%d\n" % number for number in range(1, 101)), 1)
    worker.end(running, exit_code=0)
    with follow(client, job_id, "?tail=3") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["cache-control"] == "no-store"
        lines = [number for name, number, _ in events_in(response) if name == "line"]
    assert lines == [98, 99, 100]


def test_line_breaks_of_other_kinds_do_not_break_events(client, job_id, running, stores, worker):
    text = "a\u2028b\u0085c\tdata: x \U0001f680"
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(text.encode() + b"\nevent: end\n", 1)
    worker.end(running, exit_code=0)
    body = client.get(f"/jobs/{job_id}/logs", headers={"Accept": "text/event-stream"}).content
    data = [json.loads(line[6:]) for line in body.split(b"\n") if line.startswith(b'data: {"line"')]
    assert [row["message"] for row in data] == ["a\u2028bc\tdata: x \U0001f680", "event: end"]
    assert body.count(b"event: end\n") == 1


@pytest.mark.usefixtures("running")
def test_clients_that_leave_are_noticed_at_once(live_server, job_id, stores):
    clients = [live_server.client() for _ in range(5)]
    streams = [follow(one, job_id) for one in clients]
    listening = [events_in(stream.__enter__()) for stream in streams]
    assert [next(events)[0] for events in listening] == ["phase"] * 5
    assert stores.streams.active == 5
    for one in clients:
        one.close()
    wait_until(lambda: stores.streams.active == 0, seconds=14)
    for stream in streams:
        stream.__exit__(None, None, None)


@pytest.mark.usefixtures("running")
def test_streams_are_bounded(live_server, client, job_id, stores, monkeypatch):
    monkeypatch.setattr(stores.streams, "_limit", 1)
    listener = Growing(live_server, job_id)
    wait_until(lambda: listener.named("phase"))
    with follow(client, job_id) as response:
        assert response.status_code == 503
        assert response.headers["retry-after"] == "5"
    live_server.stop()
    listener.thread.join(60)


@pytest.mark.usefixtures("running")
def test_streams_end_when_the_server_stops(live_server, job_id):
    listener = Listener(live_server, job_id)
    wait_until(lambda: live_server.server.server_state.tasks)
    wait_until(lambda: live_server.server.config.app.state.app_state.streams.active)
    began = time.monotonic()
    live_server.stop()
    listener.thread.join(60)
    assert time.monotonic() - began < 9
    assert listener.error is None
    assert listener.named("end") == []


@pytest.mark.usefixtures("running")
def test_a_job_deleted_while_it_is_followed_ends_the_stream(live_server, client, job_id):
    listener = Growing(live_server, job_id)
    wait_until(lambda: listener.named("phase"))
    client.delete(f"/jobs/{job_id}")
    listener.thread.join(60)
    name, _, data = listener.events[-1]
    assert (name, data["error"]["status"]) == ("error", 404)
