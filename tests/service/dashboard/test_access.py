"""Signing in and out, and what a form needs besides the cookie."""

import httpx
import pytest
from serving import a_job

from core import keys
from service.dashboard import access
from service.dashboard.access import SignInAttempts, own_page
from service.sessions import COOKIE, SESSION_SECONDS


@pytest.fixture
def job_id(client):
    return client.post("/jobs", json=a_job()).json()["id"]


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/jobs"])
def test_whoever_has_no_session_is_led_to_the_sign_in(visitor, path):
    answer = visitor.get(path, follow_redirects=True)
    assert (answer.status_code, answer.url.path) == (200, "/ui/login")
    assert 'name="key"' in answer.text


def test_signing_in_leads_back_to_the_page_that_was_asked_for(visitor, live, job_id):
    asked = visitor.get(f"/ui/jobs/{job_id}?part=live&x=a%20b")
    assert asked.status_code == 303
    form = visitor.get(asked.headers["location"])
    assert f'value="/ui/jobs/{job_id}?part=live&amp;x=a%20b"' in form.text
    answer = visitor.post("/ui/login", data={"key": f" {live.secret}\n", "next": f"/ui/jobs/{job_id}?part=live"})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/jobs/{job_id}?part=live")
    assert visitor.get(f"/ui/jobs/{job_id}").status_code == 200


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(visitor, live):
    cookie = visitor.post("/ui/login", data={"key": live.secret}).headers["set-cookie"].lower()
    parts = {part.strip() for part in cookie.split(";")}
    assert {"httponly", "samesite=strict", "path=/", f"max-age={SESSION_SECONDS}"} <= parts
    assert "secure" not in parts
    assert live.secret.lower() not in cookie


def test_over_https_the_cookie_is_secure(app, secret):
    transport = httpx.ASGITransport(app=app)

    async def sign_in() -> str:
        async with httpx.AsyncClient(transport=transport, base_url="https://localhost") as client:
            headers = {"Origin": "https://localhost"}
            return (await client.post("/ui/login", data={"key": secret}, headers=headers)).headers["set-cookie"]

    import asyncio  # noqa: PLC0415

    assert "; secure" in asyncio.run(sign_in()).lower()


@pytest.mark.parametrize("key", ["", "nonsense", "gj_aaaaaaaa_b_c"])
def test_a_wrong_key_says_what_is_wrong(visitor, key):
    answer = visitor.post("/ui/login", data={"key": key})
    assert answer.status_code == 401
    assert "This is not an API key" in answer.text or "misspelt" in answer.text
    assert "set-cookie" not in answer.headers


def test_after_ten_wrong_keys_even_a_right_one_waits(visitor, live, app):
    for _ in range(10):
        assert visitor.post("/ui/login", data={"key": "wrong"}).status_code == 401
    refused = visitor.post("/ui/login", data={"key": live.secret})
    assert refused.status_code == 429
    assert 0 < int(refused.headers["retry-after"]) <= 60
    app.state.sign_in_attempts = SignInAttempts()
    assert visitor.post("/ui/login", data={"key": live.secret}).status_code == 303


def test_wrong_keys_count_for_their_address_and_not_for_ever(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(access.time, "monotonic", lambda: clock[0])
    attempts = SignInAttempts(most=2, seconds=60)
    attempts.failed("a")
    clock[0] = 10
    assert attempts.wait_seconds("a") == 0
    attempts.failed("a")
    assert attempts.wait_seconds("a") == 50
    assert attempts.wait_seconds("b") == 0
    clock[0] = 60
    assert attempts.wait_seconds("a") == 0


def test_signing_out_ends_the_session_in_this_browser(person):
    assert person.get("/ui/jobs").status_code == 200
    assert person.post("/ui/logout").headers["location"] == "/ui/login"
    assert COOKIE not in person.cookies
    assert person.get("/ui/jobs").status_code == 303


def test_a_revoked_key_ends_its_sessions(person, stores, secret):
    with stores.database.write() as session:
        keys.revoke(session, secret.split("_")[1])
    stores.keys._known.clear()
    answer = person.get("/ui/jobs", follow_redirects=True)
    assert answer.url.path == "/ui/login"
    assert "Your session has ended" in answer.text


@pytest.mark.parametrize(
    "damage", [lambda c: c[:-1], lambda c: c.replace(".", "", 1), lambda _: "x", lambda c: "b" + c]
)
def test_a_forged_cookie_is_no_session(visitor, stores, damage):
    visitor.cookies.set(COOKIE, damage(stores.sessions.issue("abcdefgh")))
    assert visitor.get("/ui/jobs").status_code == 303


def test_an_expired_cookie_is_no_session(visitor, stores, secret, monkeypatch):
    monkeypatch.setattr("service.sessions.SESSION_SECONDS", -1)
    visitor.cookies.set(COOKIE, stores.sessions.issue(secret.split("_")[1]))
    assert visitor.get("/ui/jobs").status_code == 303


def test_a_ticket_opens_one_session_once(visitor, stores, secret, live):
    ticket = stores.sessions.issue_ticket(secret.split("_")[1])
    with httpx.Client(base_url=live.url, headers={"Accept": "text/html"}) as other:
        answer = other.get("/ui/login", params={"ticket": ticket, "next": "/ui/jobs?state=Running"})
        assert answer.status_code == 200
        assert 'content="0; url=/ui/jobs?state=Running"' in answer.text
        assert other.get("/ui/jobs").status_code == 200
    again = visitor.get("/ui/login", params={"ticket": ticket})
    assert (again.status_code, "used already" in again.text) == (401, True)
    assert visitor.get("/ui/jobs").status_code == 303


@pytest.mark.parametrize(
    ("wanted", "page"),
    [
        ("/ui/jobs/j1?part=live", "/ui/jobs/j1?part=live"),
        ("/ui", "/ui"),
        ("https://evil.example/ui/jobs", "/ui/jobs"),
        ("//evil.example/ui/jobs", "/ui/jobs"),
        ("/ui//evil.example", "/ui/jobs"),
        ("/ui/\\evil.example", "/ui/jobs"),
        ("/ui/x\r\nSet-Cookie: a=b", "/ui/jobs"),
        ("/jobs", "/ui/jobs"),
        ("/uix", "/ui/jobs"),
        ("javascript:alert(1)", "/ui/jobs"),
        ("", "/ui/jobs"),
        (None, "/ui/jobs"),
    ],
)
def test_nobody_is_led_to_another_site(wanted, page):
    assert own_page(wanted) == page


def test_a_link_on_another_site_leads_on_to_where_the_cookie_is_sent(visitor, job_id):
    # SameSite=Strict: the browser does not send the cookie with the first request, but with what our page asks for.
    answer = visitor.get(f"/ui/jobs/{job_id}", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert f'content="0; url=/ui/jobs/{job_id}"' in answer.text


@pytest.mark.parametrize("action", ["stop", "clone", "delete"])
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
    ],
)
def test_a_form_that_did_not_come_from_our_pages_changes_nothing(person, client, job_id, action, headers):
    del person.headers["Origin"]
    answer = person.post(f"/ui/jobs/{job_id}/{action}", headers=headers)
    assert answer.status_code == 403
    assert "<h1>This was refused</h1>" in answer.text
    assert client.get(f"/jobs/{job_id}").json()["state"] == "Pending"
    assert len(client.get("/jobs").json()["jobs"]) == 1


def test_another_site_cannot_sign_a_browser_in(visitor, live):
    answer = visitor.post("/ui/login", data={"key": live.secret}, headers={"Sec-Fetch-Site": "cross-site"})
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


@pytest.mark.parametrize("action", ["stop", "clone", "delete"])
def test_a_form_without_a_session_changes_nothing(visitor, client, job_id, action):
    answer = visitor.post(f"/ui/jobs/{job_id}/{action}")
    assert (answer.status_code, "Sign in to see this" in answer.text) == (401, True)
    assert client.get(f"/jobs/{job_id}").json()["state"] == "Pending"


def test_the_cookie_reads_but_does_not_write_through_the_api(person, job_id):
    assert person.get(f"/jobs/{job_id}").status_code == 200
    assert person.get(f"/jobs/{job_id}/logs").status_code == 200
    assert person.get(f"/jobs/{job_id}/metrics").status_code == 200
    assert person.get(f"/jobs/{job_id}/artifacts.zip").status_code == 200
    assert person.post(f"/jobs/{job_id}/stop").status_code == 401
    assert person.delete(f"/jobs/{job_id}").status_code == 401
    assert person.post("/jobs", json=a_job()).status_code == 401
