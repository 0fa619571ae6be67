"""Middleware: request ids, headers, bounded bodies, host names and origins."""

import socket
from contextlib import suppress

import httpx
import pytest
from support.deployment import EMPTY_SSL_CONTEXT
from support.live_service import LiveServer

from core.settings.api import ApiSettings
from service.main import create_app


def test_answers_carry_safe_headers(client):
    for path in ("/jobs", "/health", "/nothing"):
        headers = client.get(path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-opener-policy"] == "same-origin"
        assert "camera=()" in headers["permissions-policy"]
        assert "server" not in headers
        assert "strict-transport-security" not in headers


def test_a_service_with_https_tells_browsers_to_stay_with_it(settings, database, api_key):
    api = settings.api.model_copy(update={"public_url": "https://jobs.example.org"})
    app = create_app(settings.model_copy(update={"api": api}), database=database, wake=lambda: None)
    live = LiveServer(app, api_key)
    with live.client() as client:
        answer = client.get("/health", headers={"Host": "jobs.example.org"})
    live.stop()
    assert answer.headers["strict-transport-security"] == "max-age=31536000"


def test_names_that_are_not_ours_are_refused(client):
    for host in ("127.0.0.1", "localhost:80", "[::1]:8780", "192.168.1.7:8780"):
        assert client.get("/health", headers={"Host": host}).status_code == 200
    for host in ("rebound.example", "localhost.example:8780", "127.0.0.1.example"):
        answer = client.get("/health", headers={"Host": host})
        assert (answer.status_code, answer.json()["error"]["status"]) == (421, 421)


@pytest.mark.usefixtures("live_server")  # which has a port
def test_pages_of_other_sites_change_nothing(client):
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://[", "http://[::1"):
        answer = client.post("/projects", json={"name": "x"}, headers={"Origin": origin})
        assert (answer.status_code, answer.json()["error"]["name"]) == (403, "Forbidden")
    own = f"http://{client.base_url.host}:{client.base_url.port}"
    assert client.post("/projects", json={"name": "x"}, headers={"Origin": own}).status_code == 201
    assert client.get("/projects", headers={"Origin": "http://evil.example"}).status_code == 200


@pytest.mark.parametrize(
    ("api", "host", "status"),
    [
        (ApiSettings(public_url="https://jobs.example/"), "jobs.example", 200),
        (ApiSettings(public_url="https://jobs.example"), "other.example", 421),
        (ApiSettings(host="0.0.0.0"), "anything.example", 421),  # noqa: S104 - the case under test
        (ApiSettings(host="0.0.0.0"), "10.0.0.7", 200),  # noqa: S104 - same
        (ApiSettings(host="0.0.0.0", public_url="https://jobs.example"), "anything.example", 421),  # noqa: S104 - same
        (ApiSettings(host="0.0.0.0", public_url="https://jobs.example"), "10.0.0.7", 200),  # noqa: S104 - same
    ],
)
def test_which_names_are_ours_follows_from_the_settings(settings, database, api_key, api, host, status):
    live = LiveServer(create_app(settings.model_copy(update={"api": api}), database=database, wake=list), api_key)
    assert (
        httpx.get(f"{live.url}/health", headers={"Host": host}, verify=EMPTY_SSL_CONTEXT, timeout=60).status_code
        == status
    )
    live.stop()


def raw(live_server, head, body=b""):
    with socket.create_connection(("127.0.0.1", live_server.port), timeout=60) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + body)
        answer = b""
        while block := connection.recv(65536):
            answer += block
    return answer


def test_a_body_with_a_huge_length_is_refused_without_waiting_for_all_of_it(live_server, monkeypatch):
    monkeypatch.setattr("service.http.body_limit.DEFAULT_MAX_BYTES", 1)
    head = (
        f"POST /jobs HTTP/1.1\nHost: 127.0.0.1\nx-api-key: {live_server.api_key}\nContent-Type: application/json\n"
        "Content-Length: 100000000000\n\n"
    )
    with socket.create_connection(("127.0.0.1", live_server.port), timeout=60) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode() + bytes(100_000))
        assert connection.recv(12) == b"HTTP/1.1 413"


def test_a_body_that_stops_coming_does_not_hold_the_answer_for_ever(live_server, monkeypatch):
    monkeypatch.setattr("service.http.body_limit.LINGER_SECONDS", 0.2)
    head = (
        "POST /jobs HTTP/1.1\nHost: 127.0.0.1\nx-api-key: wrong\nContent-Type: application/json\n"
        "Content-Length: 1000\n\n"
    )
    assert raw(live_server, head, b"{").startswith(b"HTTP/1.1 401")


def test_a_refused_body_is_discarded_slowly(live_server, monkeypatch):
    monkeypatch.setattr("service.http.body_limit.LINGER_BYTES_PER_SECOND", 1)
    monkeypatch.setattr("service.http.body_limit.LINGER_SECONDS", 0.2)
    sent, block = 0, bytes(1024**2)
    with socket.create_connection(("127.0.0.1", live_server.port), timeout=60) as connection:
        connection.sendall(b"POST /users/login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 400000000\r\n\r\n")
        with suppress(ConnectionError):
            for _ in range(64):
                connection.sendall(block)
                sent += len(block)
    assert sent < 32 * 1024**2, "no more than the kernel's buffers hold"


def test_a_client_cannot_say_that_it_is_another(live_server):
    """Wrong keys are counted by address; ever new X-Forwarded-For would avoid that."""
    answers = [
        httpx.post(
            f"{live_server.url}/ui/login",
            data={"key": "wrong"},
            headers={
                "Origin": live_server.url,
                "X-Forwarded-For": f"192.0.2.{number}",
                "Forwarded": f"for=192.0.2.{number}",
            },
            verify=EMPTY_SSL_CONTEXT,
            timeout=60,
        ).status_code
        for number in range(12)
    ]
    assert answers == [401] * 10 + [429] * 2


def test_a_trusted_proxy_says_who_the_client_is(settings, database, api_key):
    api = settings.api.model_copy(update={"trusted_proxies": ["127.0.0.1"]})
    live = LiveServer(create_app(settings.model_copy(update={"api": api}), database=database, wake=list), api_key)
    headers = {"Origin": live.url, "X-Forwarded-For": "203.0.113.9, 192.0.2.1"}
    for _ in range(10):
        httpx.post(f"{live.url}/ui/login", data={"key": "wrong"}, headers=headers, verify=EMPTY_SSL_CONTEXT, timeout=60)
    assert (
        httpx.post(
            f"{live.url}/ui/login", data={"key": "wrong"}, headers=headers, verify=EMPTY_SSL_CONTEXT, timeout=60
        ).status_code
        == 429
    )
    # The proxy adds the address it saw at the end; what stands before it is the client's own word.
    headers["X-Forwarded-For"] = "198.51.100.1, 192.0.2.1"
    assert (
        httpx.post(
            f"{live.url}/ui/login", data={"key": "wrong"}, headers=headers, verify=EMPTY_SSL_CONTEXT, timeout=60
        ).status_code
        == 429
    )
    headers["X-Forwarded-For"] = "192.0.2.2"
    assert (
        httpx.post(
            f"{live.url}/ui/login", data={"key": "wrong"}, headers=headers, verify=EMPTY_SSL_CONTEXT, timeout=60
        ).status_code
        == 401
    )
    live.stop()


def test_readiness_tells_strangers_no_path(anonymous_client, settings, monkeypatch):
    monkeypatch.setattr("service.routes.server.health.os.access", lambda *_: False)
    answer = anonymous_client.get("/readiness")
    assert answer.status_code == 503
    assert str(settings.root) not in answer.text
