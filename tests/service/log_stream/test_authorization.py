"""A followed log ends with the key or the session that opened it."""

import json
import threading
import time
from types import SimpleNamespace

import pytest
from support.live_service import wait_until

from core.errors import StoreUnavailable
from core.security import api_keys
from core.settings import Settings
from service.auth.session_cookie import cookie_name
from service.log_stream import feed
from service.log_stream.feed import Authorization

pytestmark = pytest.mark.usefixtures("live_server")  # whose answers are read while they are sent

COOKIE = cookie_name(Settings())


@pytest.fixture(autouse=True)
def _checked_often(monkeypatch):
    monkeypatch.setattr(feed, "AUTHORIZE_SECONDS", 0.05)


@pytest.fixture
def job_id(job_id, worker):
    worker.start()
    return job_id


class Follower:
    """Follows a log in a thread until its stream ends."""

    def __init__(self, client, job_id, headers):
        self.text = ""
        self._asked = client, f"/jobs/{job_id}/logs", {"Accept": "text/event-stream", **headers}
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()
        wait_until(lambda: "event: phase" in self.text)

    def _run(self):
        client, path, headers = self._asked
        with client.stream("GET", path, headers=headers) as answer:
            for chunk in answer.iter_text():
                self.text += chunk

    def last_event(self):
        name, _, data = self.text.strip().rpartition("event: ")[2].partition("\ndata: ")
        return name, json.loads(data)


def revoke(stores, key_id):
    with stores.database.write() as session:
        api_keys.revoke(session, key_id)
    stores.keys.clear()


def check_ended(follower, stores, job_id):
    follower.thread.join(60)
    assert not follower.thread.is_alive(), "it follows on"
    name, data = follower.last_event()
    assert (name, data["error"]["name"], data["error"]["status"]) == ("error", "Unauthorized", 401)
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"secret\n", 1000)
    assert "secret" not in follower.text


def test_a_followed_log_ends_when_its_key_is_revoked(anonymous_client, job_id, stores):
    with stores.database.write() as session:
        key, secret = api_keys.create(session, "carol")
        key_id = key.id
    follower = Follower(anonymous_client, job_id, {"x-api-key": secret})
    revoke(stores, key_id)
    check_ended(follower, stores, job_id)
    assert f"The API key {key_id} was revoked" in follower.text
    again = anonymous_client.get(f"/jobs/{job_id}/logs", headers={"Accept": "text/event-stream", "x-api-key": secret})
    assert again.status_code == 401, "a client that connects again learns why"


def test_a_followed_log_ends_when_its_user_signs_out(anonymous_client, job_id, stores, api_key):
    token = stores.sessions.open(api_key.split("_")[1])
    follower = Follower(anonymous_client, job_id, {"Cookie": f"{COOKIE}={token}"})
    stores.sessions.end(token)
    check_ended(follower, stores, job_id)
    assert "This browser session has ended" in follower.text


def test_a_followed_log_of_a_closed_project_ends_for_who_is_no_member_any_more(
    client, anonymous_client, job_id, bob, stores
):
    project = f"/projects/{client.get(f'/jobs/{job_id}').json()['projectId']}"
    assert client.patch(project, json={"closed": True}).json()["closed"]
    client.put(f"{project}/members/{bob[0]}", json={"role": "viewer"})
    mine = Follower(client, job_id, {})
    follower = Follower(anonymous_client, job_id, bob[1])
    client.delete(f"{project}/members/{bob[0]}")
    follower.thread.join(60)
    name, data = follower.last_event()
    made_up = client.get("/jobs/j0000000000000/logs").json()["error"]
    assert (name, data["error"]["status"]) == ("error", 404)
    assert data["error"]["message"] == made_up["message"].replace("j0000000000000", job_id)
    assert mine.thread.is_alive(), "the stream of a member goes on"
    stores.streams.stop()
    mine.thread.join(60)


def test_a_key_in_a_header_is_checked_and_not_the_cookie_beside_it(anonymous_client, job_id, stores, api_key):
    with stores.database.write() as session:
        key, secret = api_keys.create(session, "carol")
        key_id = key.id
    token = stores.sessions.open(api_key.split("_")[1])
    follower = Follower(anonymous_client, job_id, {"x-api-key": secret, "Cookie": f"{COOKIE}={token}"})
    revoke(stores, key_id)
    check_ended(follower, stores, job_id)


def test_followers_of_a_key_share_its_check(anonymous_client, job_id, stores, api_key, monkeypatch):
    checks = []
    get = stores.keys.get
    monkeypatch.setattr(stores.keys, "get", lambda key_id: checks.append(key_id) or get(key_id))
    began = time.monotonic()
    followers = [Follower(anonymous_client, job_id, {"x-api-key": api_key}) for _ in range(10)]
    wait_until(lambda: len(checks) >= 3)
    assert len(checks) <= 1 + time.monotonic() - began, "one each time that their log is read, not ten"
    assert len(stores.streams.authorizations) == 1
    assert len(stores.streams.feeds) == 1
    stores.streams.stop()
    for follower in followers:
        follower.thread.join(60)


def test_a_key_is_checked_every_three_seconds_and_not_at_every_poll(monkeypatch):
    monkeypatch.setattr(feed, "AUTHORIZE_SECONDS", 3.0)
    clock = [1000.0]
    monkeypatch.setattr(feed, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    checks = []
    authorization = Authorization(lambda: checks.append(clock[0]))
    for _ in range(12):
        clock[0] += 1
        authorization.check()
    assert checks == [1003.0, 1006.0, 1009.0, 1012.0]


def test_a_log_is_followed_on_while_the_database_does_not_answer(stores, job_id, monkeypatch, make_follower):
    monkeypatch.setattr(feed, "AUTHORIZE_SECONDS", 0.0)
    checks = []

    def authorize():
        checks.append(True)
        raise StoreUnavailable("It does not answer.")

    follower = make_follower(authorize=authorize)
    follower.poll()
    with stores.logs.open_writer(job_id, 1) as log:
        log.append(b"one\n", 1000)
    assert '"one"' in follower.poll()
    assert checks
