"""Errors as pages for browsers, as JSON for everybody else; and the headers of every page."""

import html
import re
import threading

import pytest
from support.browser import Browser
from support.live_service import make_job_body

from core.errors import LimitReached, StoreUnavailable
from core.jobs import queries

CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)


@pytest.mark.parametrize(
    ("path", "words", "onward"),
    [
        ("/ui/jobs/jnope", "No such job: 'jnope'.", "jobs"),
        ("/ui/jobs/jnope/artifacts", "No such job: 'jnope'.", "jobs"),
        ("/ui/nothing", "No page has this address.", "jobs"),
        ("/ui/jobs/x/y/z", "No page has this address.", "jobs"),
        ("/ui/sweeps/snope", "No such sweep: 'snope'.", "sweeps"),
        ("/ui/schedules/scnope", "No such schedule: 'scnope'.", "schedules"),
        ("/ui/comparisons/cnope", "No such comparison: 'cnope'.", "comparisons"),
        ("/ui/projects/nope", "There is no project 'nope'", "projects"),
        ("/ui/settings/nope", "", "settings"),
        ("/ui/jobs/new?clone=x", "This form has no clone.", "jobs"),
        ("/ui/jobs/new?from=jnope", "No such job: 'jnope'.", "jobs"),
        ("/ui/jobs?charts=1&ids=jnope,jnone", "No such job: 'jnope,jnone'.", "jobs"),
    ],
)
def test_what_is_not_there_is_said_on_a_page_with_the_way_onward(signed_in_browser, path, words, onward):
    answer = signed_in_browser.get(path)
    assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")
    said = html.unescape(re.sub(r"<[^>]+>", "", answer.text.partition("<main")[2]))
    assert "There is nothing here" in said
    assert words in said
    assert not re.search(r"openapi|gradient-cli|GET /", said)
    assert f'<a class="button" href="/ui/{onward}">' in answer.text
    assert '<nav class="sections"' in answer.text


@pytest.mark.parametrize(
    ("error", "status", "heading"),
    [
        (StoreUnavailable("The database does not answer."), 503, "Not available right now"),
        (RuntimeError("secret detail"), 500, "Something went wrong here"),
    ],
)
def test_a_failure_is_a_page_that_gives_nothing_away(signed_in_browser, monkeypatch, error, status, heading):
    def fail(*_args, **_kwargs):
        raise error

    monkeypatch.setattr("core.jobs.queries.page", fail)
    answer = signed_in_browser.get("/ui/jobs")
    assert (answer.status_code, f"<h1>{heading}</h1>" in answer.text) == (status, True)
    assert "secret detail" not in answer.text
    assert answer.headers["content-security-policy"] == CSP
    assert answer.headers["x-request-id"]
    again = answer.headers.get("retry-after")
    assert (again is not None) == (status == 503)
    assert (f'<main id="content" class="narrow" data-again="{again}">' in answer.text) == (status == 503)
    assert ">Try again</a>" in answer.text
    assert '<nav class="sections"' in answer.text
    assert '<p class="muted" title="The API key that you signed in with">tests</p>' in answer.text


def test_a_database_that_fails_before_the_session_is_known_leaves_the_navigation(
    signed_in_browser, monkeypatch, server
):
    def fail(*_args):
        raise StoreUnavailable("The database does not answer right now. Try again in a moment.")

    monkeypatch.setattr("core.security.sessions.Sessions.key", fail)
    for path, status in (("/ui/jobs", 503), ("/ui/nothing", 404)):
        answer = signed_in_browser.get(path)
        assert (answer.status_code, '<nav class="sections"' in answer.text) == (status, True)
        assert "The API key that you signed in with" not in answer.text
        with server.client(headers={"Accept": "text/html"}) as stranger:
            assert '<nav class="sections"' not in stranger.get(path).text


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/ui/jobs/jx/stop", 405, "no link. Go back, and use the form's button."),
        ("POST", "/ui/jobs/new", 413, "the limit here. Go back, and send less."),
        ("GET", "/ui/jobs/jx?attempt=x", 422, "attempt: must be a valid integer, not 'x'. Correct the address"),
    ],
)
def test_a_refusal_has_the_navigation_and_says_what_to_do(signed_in_browser, method, path, status, words):
    form = {"headers": {"Content-Type": "application/x-www-form-urlencoded"}, "content": b"x" * 1_100_000}
    answer = signed_in_browser.request(method, path, **(form if method == "POST" else {}))
    assert (answer.status_code, '<nav class="sections"' in answer.text) == (status, True)
    assert words in html.unescape(answer.text)


def test_a_form_sent_after_signing_out_says_so(anonymous_browser):
    answer = anonymous_browser.post("/ui/jobs/jx/stop")
    assert (answer.status_code, '<nav class="sections"' in answer.text) == (401, False)
    assert "You are not signed in. Sign in, then send the form again: nothing was changed." in answer.text


def test_a_page_refused_by_a_limit_comes_by_itself(live_server, api_key, chromium, monkeypatch):
    page, free = queries.page, threading.Event()

    def read(*args, **options):
        if not free.is_set():
            raise LimitReached("All slots are in use.", 5)
        return page(*args, **options)

    monkeypatch.setattr(queries, "page", read)
    browser = Browser(chromium)
    browser.hurry()
    browser.sign_in(live_server.url, api_key)
    browser.open(f"{live_server.url}/ui/jobs")
    assert "A limit has been reached" in browser.text("h1")
    assert "Try again in 5 seconds" in browser.text("main")
    free.set()
    browser.wait_for("document.querySelector('h1').innerText === 'Jobs'")
    browser.evaluate("window.fetch = async () => new Response('', { status: 429, headers: { 'Retry-After': '1' } })")
    browser.wait_for("document.getElementById('stale').innerText.startsWith('The server is busy')")
    browser.close()


def test_a_message_is_escaped(signed_in_browser):
    answer = signed_in_browser.get("/ui/jobs/<script>alert(1)<script>")
    assert answer.status_code == 404
    assert "<script>alert" not in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text


def test_every_page_may_load_our_own_files_only(signed_in_browser, client):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    for path in ("/ui/login", "/ui/jobs", f"/ui/jobs/{job_id}", f"/ui/jobs/{job_id}/artifacts", "/ui/jobs/jnope"):
        headers = signed_in_browser.get(path).headers
        assert headers["content-security-policy"] == CSP
        assert headers["cache-control"] == "private, no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "same-origin"
        assert headers.get_list("content-type") == ["text/html; charset=utf-8"]
