"""Signing in and out, and what a form needs besides the cookie."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest
from support.deployment import EMPTY_SSL_CONTEXT
from support.live_service import LiveServer, make_job_body

from core.errors import Unauthorized
from core.security import api_keys, one_time_tokens, sessions
from core.security.one_time_tokens import Purpose
from core.settings import Settings
from core.settings.api import ApiSettings, SignInSettings
from core.settings.limits import LimitSettings
from service.auth.per_key_limits import Limits
from service.auth.session_cookie import cookie_name
from service.dashboard.login import safe_redirect_target, wrong_key_backoff
from service.main import create_app

COOKIE = cookie_name(Settings())


@contextmanager
def served(app, host):
    """A client that reaches an application under a host name, without cookies of its own."""
    live = LiveServer(app, "")
    with httpx.Client(base_url=live.url, headers={"Host": host}, timeout=60, verify=EMPTY_SSL_CONTEXT) as client:
        yield client
    live.stop()


@pytest.fixture
def job_id(client):
    return client.post("/jobs", json=make_job_body()).json()["id"]


def test_signing_in_leads_back_to_the_page_that_was_asked_for(anonymous_browser, live_server, job_id):
    asked = anonymous_browser.get(f"/ui/jobs/{job_id}?part=live&x=a%20b")
    assert asked.status_code == 303
    form = anonymous_browser.get(asked.headers["location"])
    assert f'value="/ui/jobs/{job_id}?part=live&amp;x=a%20b"' in form.text
    answer = anonymous_browser.post(
        "/ui/login", data={"key": f" {live_server.api_key}\n", "next": f"/ui/jobs/{job_id}?part=live"}
    )
    assert (answer.status_code, answer.headers["location"]) == (303, f"/ui/jobs/{job_id}?part=live")
    assert anonymous_browser.get(f"/ui/jobs/{job_id}").status_code == 200


def test_the_cookie_is_out_of_reach_of_scripts_and_other_sites(anonymous_browser, live_server):
    cookie = anonymous_browser.post("/ui/login", data={"key": live_server.api_key}).headers["set-cookie"].lower()
    parts = {part.strip() for part in cookie.split(";")}
    assert {"httponly", "samesite=strict", "path=/", f"max-age={30 * 86_400}"} <= parts
    assert "secure" not in parts
    assert live_server.api_key.lower() not in cookie


def test_a_proxy_that_does_not_say_https_cannot_have_the_cookie_sent_in_the_clear(settings, database, api_key):
    public = ApiSettings(public_url="https://jobs.example.org")
    app = create_app(settings.model_copy(update={"api": public}), database=database, wake=lambda: None)
    # As docs/deploy.md's proxy asks us: in plain HTTP, under the public name.
    with served(app, "jobs.example.org") as proxied:
        headers = {"Origin": "https://jobs.example.org"}
        signed_in = proxied.post("/ui/login", data={"key": api_key}, headers=headers)
        cookie = signed_in.headers["set-cookie"]
        assert {"secure", "httponly", "samesite=strict", "path=/"} <= {one.strip().lower() for one in cookie.split(";")}
        assert "domain" not in cookie.lower()
        name, _, token = cookie.partition(";")[0].partition("=")
        assert name == "__Host-gradient_session_443"
        assert proxied.get("/jobs", headers={"Cookie": f"{name}={token}"}).status_code == 200
        assert proxied.get("/jobs", headers={"Cookie": f"{COOKIE}={token}"}).status_code == 401, "anybody may set that"
        out = proxied.post("/ui/logout", headers=headers | {"Cookie": f"{name}={token}"}).headers["set-cookie"].lower()
        assert out.startswith("__host-gradient_session_443=")
        assert "secure" in out


@pytest.mark.parametrize("key", ["", "nonsense", "gj_aaaaaaaa_b_c"])
def test_a_wrong_key_says_what_is_wrong(anonymous_browser, key):
    answer = anonymous_browser.post("/ui/login", data={"key": key})
    assert answer.status_code == 401
    assert "This is not an API key" in answer.text or "misspelled" in answer.text
    assert "set-cookie" not in answer.headers


def test_after_ten_wrong_keys_only_wrong_ones_wait(anonymous_browser, live_server, app):
    """A stranger behind the same proxy keeps nobody out."""
    for _ in range(10):
        assert anonymous_browser.post("/ui/login", data={"key": "wrong"}).status_code == 401
    for _ in range(2):
        refused = anonymous_browser.post("/ui/login", data={"key": "wrong"})
        assert (refused.status_code, "Too many wrong keys" in refused.text) == (429, True)
        assert 0 < int(refused.headers["retry-after"]) <= 60
    assert anonymous_browser.post("/ui/login", data={"key": live_server.api_key}).status_code == 303
    assert anonymous_browser.post("/ui/login", data={"key": "wrong"}).status_code == 429, "they wait still"
    app.state.wrong_keys = wrong_key_backoff()
    assert anonymous_browser.post("/ui/login", data={"key": "wrong"}).status_code == 401


def test_signing_out_ends_the_session_in_this_browser(signed_in_browser):
    assert signed_in_browser.get("/ui/jobs").status_code == 200
    assert signed_in_browser.post("/ui/logout").headers["location"] == "/ui/login"
    assert COOKIE not in signed_in_browser.cookies
    assert signed_in_browser.get("/ui/jobs").status_code == 303


def test_a_copy_of_the_cookie_is_worth_nothing_after_signing_out(signed_in_browser, anonymous_client):
    copied = {"Cookie": f"{COOKIE}={signed_in_browser.cookies[COOKIE]}"}
    assert anonymous_client.get("/jobs", headers=copied).status_code == 200
    signed_in_browser.post("/ui/logout")
    assert anonymous_client.get("/jobs", headers=copied).status_code == 401


def test_a_revoked_key_ends_its_sessions(signed_in_browser, stores, api_key):
    with stores.database.write() as session:
        api_keys.revoke(session, api_key.split("_")[1])
    stores.keys.clear()
    answer = signed_in_browser.get("/ui/jobs", follow_redirects=True)
    assert answer.url.path == "/ui/login"
    assert "Your session has ended" in answer.text


@pytest.mark.parametrize("damage", [lambda c: c[:-1], lambda _: "x", lambda c: "b" + c, lambda c: c.swapcase()])
def test_a_forged_cookie_is_no_session(anonymous_browser, stores, api_key, damage):
    anonymous_browser.cookies.set(COOKIE, damage(stores.sessions.open(api_key.split("_")[1])))
    assert anonymous_browser.get("/ui/jobs").status_code == 303


@pytest.mark.parametrize("over", [SignInSettings(session_days=1e-9), SignInSettings()])
def test_a_session_ends_after_its_days_and_when_it_is_not_used(settings, database, api_key, over, monkeypatch):
    if over == SignInSettings():
        monkeypatch.setattr(sessions, "IDLE_SECONDS", 1e-4)
    app = create_app(settings.model_copy(update={"sign_in": over}), database=database, wake=lambda: None)
    token = app.state.app_state.sessions.open(api_key.split("_")[1])
    time.sleep(0.01)  # longer than it lasts, by the database's clock
    with served(app, "127.0.0.1") as client:
        assert client.get("/jobs", headers={"Cookie": f"{COOKIE}={token}"}).status_code == 401


def test_the_dashboard_has_one_host_name(anonymous_browser, live_server):
    """A session under a second name would be sent to whatever else is reached under that one."""
    asked = anonymous_browser.get("/ui/jobs?state=Running&x=a%0Ab", headers={"Host": f"localhost:{live_server.port}"})
    assert (asked.status_code, asked.headers["location"]) == (307, f"{live_server.url}/ui/jobs?state=Running&x=a%0Ab")
    moved = anonymous_browser.get("/ui/jobs/a%0d%0aSet-Cookie: b", headers={"Host": f"127.0.0.2:{live_server.port}"})
    assert moved.headers["location"].startswith(f"{live_server.url}/ui/jobs/a%0D%0ASet-Cookie")
    form = anonymous_browser.post(
        "/ui/login", data={"key": live_server.api_key}, headers={"Host": f"127.0.0.2:{live_server.port}"}
    )
    assert (form.status_code, "set-cookie" in form.headers) in {(421, False), (403, False)}
    assert anonymous_browser.get("/health", headers={"Host": f"127.0.0.2:{live_server.port}"}).status_code == 200


@pytest.mark.parametrize(
    ("api", "says"),
    [
        (ApiSettings(public_url="https://jobs.example.org"), "The dashboard is at https://jobs.example.org/ui"),
        (ApiSettings(host="0.0.0.0"), "GRADIENT_API__PUBLIC_URL"),  # noqa: S104 - the case under test
    ],
)
def test_another_name_is_told_where_the_dashboard_is(settings, database, api, says):
    app = create_app(settings.model_copy(update={"api": api}), database=database, wake=lambda: None)
    with served(app, "10.0.0.7") as client:
        answer = client.get("/ui/login", headers={"Accept": "text/html"})
        assert (answer.status_code, says in answer.text) == (421, True)


def test_of_several_that_show_a_ticket_at_once_one_gets_in(stores, api_key, live_server):
    with stores.database.write() as session:
        ticket = one_time_tokens.issue(session, Purpose.TICKET, api_key.split("_")[1])
    together = threading.Barrier(8)

    def use(_):
        together.wait()
        return httpx.get(
            f"{live_server.url}/ui/login", params={"ticket": ticket}, verify=EMPTY_SSL_CONTEXT, timeout=60
        ).status_code

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(use, range(8))) == [200] + [401] * 7


def test_a_ticket_opens_one_session_once(anonymous_browser, stores, api_key, live_server):
    with stores.database.write() as session:
        ticket = one_time_tokens.issue(session, Purpose.TICKET, api_key.split("_")[1])
    with httpx.Client(
        base_url=live_server.url, headers={"Accept": "text/html"}, verify=EMPTY_SSL_CONTEXT, timeout=60
    ) as other:
        answer = other.get("/ui/login", params={"ticket": ticket, "next": "/ui/jobs?state=Running"})
        assert answer.status_code == 200
        assert 'content="0; url=/ui/jobs?state=Running"' in answer.text
        assert other.get("/ui/jobs").status_code == 200
    again = anonymous_browser.get("/ui/login", params={"ticket": ticket})
    assert (again.status_code, "already used" in again.text) == (401, True)
    assert anonymous_browser.get("/ui/jobs").status_code == 303


@pytest.fixture
def ticket(stores, api_key):
    with stores.database.write() as session:
        return one_time_tokens.issue(session, Purpose.TICKET, api_key.split("_")[1])


@pytest.fixture
def other_key(database):
    with database.write() as session:
        return api_keys.create(session, "of somebody else")[1]


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_ticket_in_a_link_of_another_site_has_to_be_confirmed(anonymous_browser, ticket, site):
    """Otherwise another site could sign a browser in as somebody else, who then sees what is submitted."""
    followed = {"params": {"ticket": ticket, "next": "/ui/jobs?state=Running"}, "headers": {"Sec-Fetch-Site": site}}
    for _ in range(2):
        asked = anonymous_browser.get("/ui/login", **followed)
        assert (asked.status_code, "set-cookie" in asked.headers) == (200, False)
    assert f'name="ticket" value="{ticket}"' in asked.text
    assert "<b>tests</b>" in asked.text
    form = {"ticket": ticket, "next": "/ui/jobs?state=Running"}
    foreign = anonymous_browser.post("/ui/login", data=form, headers={"Sec-Fetch-Site": site})
    assert (foreign.status_code, "set-cookie" in foreign.headers) == (403, False)
    confirmed = anonymous_browser.post("/ui/login", data=form)
    assert (confirmed.status_code, confirmed.headers["location"]) == (303, "/ui/jobs?state=Running")
    assert anonymous_browser.get("/ui/jobs").status_code == 200
    assert anonymous_browser.post("/ui/login", data=form).status_code == 401


def test_a_ticket_of_another_key_than_the_sessions_has_to_be_confirmed(anonymous_browser, ticket, other_key, stores):
    anonymous_browser.post("/ui/login", data={"key": other_key})
    before = anonymous_browser.cookies[COOKIE]
    asked = anonymous_browser.get("/ui/login", params={"ticket": ticket})
    assert (asked.status_code, "set-cookie" in asked.headers) == (200, False)
    assert "of somebody else" in asked.text
    assert stores.sessions.key(before).id == other_key.split("_")[1]
    assert anonymous_browser.post("/ui/login", data={"ticket": ticket}).status_code == 303
    assert stores.sessions.key(anonymous_browser.cookies[COOKIE]).name == "tests"
    with pytest.raises(Unauthorized):
        stores.sessions.key(before)


@pytest.mark.parametrize("by", ["key", "ticket"])
def test_signing_in_again_ends_the_session_before(signed_in_browser, stores, live_server, ticket, by):
    before = signed_in_browser.cookies[COOKIE]
    if by == "key":
        signed_in_browser.post("/ui/login", data={"key": live_server.api_key})
    else:
        signed_in_browser.get("/ui/login", params={"ticket": ticket})
    assert signed_in_browser.cookies[COOKIE] != before
    assert signed_in_browser.get("/ui/jobs").status_code == 200
    with pytest.raises(Unauthorized):
        stores.sessions.key(before)


def test_sign_ins_count_as_requests_of_the_key(anonymous_browser, stores, live_server, ticket):
    stores.limits = Limits(LimitSettings(requests_per_minute=2))
    answers = [anonymous_browser.post("/ui/login", data={"key": live_server.api_key}) for _ in range(3)]
    assert [answer.status_code for answer in answers] == [303, 303, 429]
    assert "GRADIENT_LIMITS__REQUESTS_PER_MINUTE" in answers[-1].text
    anonymous_browser.cookies.clear()
    assert anonymous_browser.get("/ui/login", params={"ticket": ticket}).status_code == 429
    stores.limits = Limits(LimitSettings())
    assert anonymous_browser.get("/ui/login", params={"ticket": ticket}).status_code == 200, "the ticket is still good"


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
    assert safe_redirect_target(wanted) == page


def test_a_link_on_another_site_leads_on_to_where_the_cookie_is_sent(anonymous_browser, job_id):
    # SameSite=Strict: the browser does not send the cookie with the first request, but with what our page asks for.
    answer = anonymous_browser.get(f"/ui/jobs/{job_id}", headers={"Sec-Fetch-Site": "cross-site"})
    assert answer.status_code == 200
    assert f'content="0; url=/ui/jobs/{job_id}"' in answer.text


def test_another_site_cannot_sign_a_browser_in(anonymous_browser, live_server):
    answer = anonymous_browser.post(
        "/ui/login", data={"key": live_server.api_key}, headers={"Sec-Fetch-Site": "cross-site"}
    )
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
