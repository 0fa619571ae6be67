"""The check of a job's image in a dry run, at registries that answer as they should, and at others."""

import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from support.live_service import InProcessServer, make_job_body
from support.servers.private_registry import IMAGE_NAME, IMAGE_TAG, PrivateRegistryServer

from core.settings.worker import MachineSettings
from service.main import create_app
from service.submission import image_check

PASSWORD = "s3cret"


@contextmanager
def serving(server):
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"{server.server_address[0]}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def answering():
    """A function that starts a server of this address, whose answers have these headers; returns its name, requests."""
    servers = []

    def start(address, status, **headers):
        asked = []

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                asked.append(f"{self.command} {self.path} {self.headers.get('Authorization')}")
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name.replace("_", "-"), value)
                self.end_headers()

            do_HEAD = do_GET  # noqa: N815 - http.server's

        context = serving(ThreadingHTTPServer((address, 0), Handler))
        servers.append(context)
        return context.__enter__(), asked

    yield start
    for context in servers:
        context.__exit__(None, None, None)


@pytest.fixture
def ask(settings, database, api_key):
    """A function that returns what a dry run says of an image; only 127.0.0.1 is allowed."""
    settings.egress.allowed = ["127.0.0.1"]
    settings.machines = MachineSettings(simulate=False)
    server = InProcessServer(create_app(settings, database=database, wake=lambda: None), api_key)
    client = server.client()

    def ask(image, **options):
        answer = client.post("/jobs?dryRun=true", json=make_job_body(container=image, **options))
        assert answer.status_code == 200, answer.text
        return answer.json()["imageCheck"]

    ask.client = client
    yield ask
    server.stop()


@pytest.mark.parametrize("scheme", ["basic", "token"])
def test_a_registry_says_whether_the_image_is_there_for_the_login_that_a_worker_would_use(ask, scheme):
    registry = PrivateRegistryServer(("127.0.0.1", 0), f"alice:{PASSWORD}", scheme, b"layer")
    with serving(registry) as host:
        image = f"{host}/{IMAGE_NAME}:{IMAGE_TAG}"
        assert ask(image)["state"] == "login"
        sent = {"registryUsername": "alice", "registryPassword": "wrong"}
        assert "for the login of alice" in ask(image, **sent)["message"]
        stored = ask.client.put(f"/registries/{host}", json={"username": "alice", "password": PASSWORD})
        assert stored.status_code == 201, stored.text
        found = ask(image)
        assert (found["state"], found["bytes"]) == ("found", len(b"layer"))
        assert f"/v2/{IMAGE_NAME}/manifests/{found['digest']}" in registry.content
        missing = ask(f"{host}/{IMAGE_NAME}:2")
        assert (missing["state"], missing["digest"]) == ("missing", None)
        assert ask(image, imagePullPolicy="Never") is None


def test_no_request_reaches_an_address_that_is_not_public(ask, answering):
    """By name, by redirect, and by the place where a registry wants its login."""
    inside, asked = answering("127.0.0.2", 200, Docker_Content_Digest=f"sha256:{'0' * 64}")
    names = [
        inside,
        answering("127.0.0.1", 307, Location=f"http://{inside}/v2/")[0],
        answering("127.0.0.1", 401, WWW_Authenticate=f'Bearer realm="http://{inside}/token"')[0],
    ]
    for name in names:
        answer = ask(f"{name}/a:1", registryUsername="alice", registryPassword=PASSWORD)
        assert answer["state"] == "unknown"
        assert "127.0.0.2, which is not public" in answer["message"]
    assert asked == []


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (307, {"Location": "file:///etc/passwd"}),
        (307, {"Location": "http://example.org/"}),
        (401, {"WWW_Authenticate": 'Bearer realm="http://example.org/token"'}),
        (401, {}),
        (401, {"WWW_Authenticate": "Bearer"}),
        (500, {}),
        (200, {}),
        (200, {"Docker_Content_Digest": "md5:1"}),
        (429, {"Retry_After": "1"}),
    ],
)
def test_of_an_answer_that_is_none_nothing_is_claimed(ask, answering, status, headers):
    host, asked = answering("127.0.0.1", status, **headers)
    assert ask(f"{host}/a:1")["state"] == "unknown"
    assert asked


def test_a_login_is_not_sent_on_by_a_redirect(ask, answering):
    other, asked = answering("127.0.0.1", 200, Docker_Content_Digest=f"sha256:{'0' * 64}")
    host, first = answering("127.0.0.1", 307, Location=f"http://{other}/elsewhere")
    assert ask(f"{host}/a:1", registryUsername="alice", registryPassword=PASSWORD)["state"] == "found"
    assert first[0].startswith("HEAD /v2/a/manifests/1")
    assert all(line.endswith("/elsewhere None") for line in asked)


def test_a_registry_that_says_nothing_is_not_waited_for(ask, monkeypatch):
    monkeypatch.setattr(image_check, "_SECONDS", 0.2)
    silent = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)  # it accepts connections and serves none
    try:
        answer = ask(f"127.0.0.1:{silent.server_address[1]}/a:1")
        assert (answer["state"], "no answer in 0.2 seconds" in answer["message"]) == ("unknown", True)
    finally:
        silent.server_close()


def test_nobody_is_asked_where_no_image_is_pulled(client):
    answer = client.post("/jobs?dryRun=true", json=make_job_body(container="tensorflow/tensorflow"))
    assert answer.json()["imageCheck"] is None
