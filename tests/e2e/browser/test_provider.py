"""Signing in with an OpenID provider, in a browser, and with answers that no honest provider gives."""

import base64
import json
import os
import pty
import re
import subprocess
from contextlib import closing
from urllib.parse import urlsplit

import httpx
import pytest
from sqlalchemy import update
from support.browser import Browser
from support.deployment import (
    CLI_PROGRAM,
    EMPTY_SSL_CONTEXT,
    SERVER_PROGRAM,
    TIMEOUT_SECONDS,
    Deployment,
    wait_until,
)
from support.servers.openid_provider import OpenIdProvider

from core.db.database import Database, now
from core.db.models.credentials import BrowserSession

ROLES = {"leads": {"red": "maintainer"}, "red": {"red": "submitter", "of nobody": "viewer"}}


@pytest.fixture(scope="module")
def provider(tmp_path_factory):
    running = OpenIdProvider(tmp_path_factory.mktemp("provider") / "log")
    yield running
    running.stop()


@pytest.fixture(scope="module")
def service(provider, tmp_path_factory):
    settings = provider.settings(
        administrators='["admins"]', roles=json.dumps(ROLES), email_domains='["lab.example"]', check_seconds="1"
    )
    deployment = Deployment(tmp_path_factory.mktemp("service") / "home", **settings)
    deployment.start_up()
    yield deployment
    deployment.stop()


@pytest.fixture
def url(service):
    return service.cli_json["url"]


@pytest.fixture
def browser(chromium):
    browser = Browser(chromium)
    yield browser
    browser.close()


class Person:
    """Somebody's browser that runs no scripts, for answers that are made by hand."""

    def __init__(self, url, provider):
        self.client = httpx.Client(
            base_url=url, timeout=TIMEOUT_SECONDS, verify=EMPTY_SSL_CONTEXT, headers={"Accept": "text/html"}
        )
        self._provider = provider

    def begin(self, wanted="/ui/jobs"):
        return self.client.get("/ui/login/provider", params={"next": wanted}).headers["location"]

    def answer(self, subject, address):
        """The address that the provider sends the browser back to."""
        return self._provider.client.post(address, data={"sub": subject}).headers["location"]

    def sign_in(self, subject, wanted="/ui/jobs"):
        return self.client.get(self.answer(subject, self.begin(wanted)))

    def is_signed_in(self):
        return self.client.get("/ui/jobs").status_code == 200


@pytest.fixture
def person(url, provider):
    someone = Person(url, provider)
    yield someone
    someone.client.close()


def sign_in(browser, url, subject):
    browser.open(f"{url}/ui/login")
    browser.click("#provider")
    browser.wait_for("document.querySelector('input[name=sub]')")
    browser.fill("input[name=sub]", subject)
    browser.click("form button")


def audit(service, **wanted):
    command = [str(SERVER_PROGRAM), "audit", "--json"]
    done = subprocess.run(command, env=service.environment(), capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    return [row for row in rows if wanted.items() <= row.items()]


def test_signing_in_and_out(browser, provider, url):
    provider.set_user("ada@lab.example", "red")
    sign_in(browser, url, "ada@lab.example")
    browser.wait_for("location.pathname === '/ui/jobs'")
    browser.click("#account summary")
    assert "ada@lab.example" in browser.text("#account")
    asked = provider.asked()
    assert (asked["redirect_uri"], asked["response_type"]) == (f"{url}/ui/login/callback", "code")
    assert (asked["code_challenge_method"], len(asked["code_challenge"])) == ("S256", 43)
    assert asked["nonce"]
    assert asked["state"]
    browser.click("#account form button")
    browser.wait_for(f"location.href.startsWith('{provider.url}/oauth2/end_session')")
    browser.open(f"{url}/ui/jobs")
    assert "Sign in" in browser.text("h1")


def test_an_address_of_another_domain_is_refused(browser, provider, service, url):
    provider.set_user("eve@evil.example", "admins")
    sign_in(browser, url, "eve@evil.example")
    browser.wait_for("document.querySelector('.problem')")
    assert "evil.example may not sign in" in browser.text(".problem")
    browser.open(f"{url}/ui/jobs")
    assert "Sign in" in browser.text("h1")
    wait_until(lambda: audit(service, action="refused", target="sign-in", address="127.0.0.1"), "its row in the record")


def test_a_session_ends_when_its_time_is_over(browser, provider, service, url):
    provider.set_user("bea@lab.example")
    sign_in(browser, url, "bea@lab.example")
    browser.wait_for("location.pathname === '/ui/jobs'")
    with closing(Database(service.database_url)) as database, database.write() as session:
        session.execute(update(BrowserSession).values(expires_at=now(-1)))

    def has_ended():
        browser.open(f"{url}/ui/jobs")
        return "Your session has ended" in browser.text()

    wait_until(has_ended, "the end of the session")


def test_a_change_of_groups_counts_within_seconds_even_on_an_open_stream(provider, service, person):
    job = service.job(service.submit("while true; do echo x; sleep 0.2; done", project="red"))
    key = {"x-api-key": service.cli_json["apiKey"]}
    person.client.patch(f"/projects/{job['projectId']}", json={"closed": True}, headers=key).raise_for_status()
    provider.set_user("cyd@lab.example")
    person.sign_in("cyd@lab.example")
    address = f"/jobs/{job['id']}"
    assert person.client.get(address).status_code == 404, "no group of hers has a role"
    provider.set_user("cyd@lab.example", "leads", "red")
    wait_until(lambda: person.client.get(address).status_code == 200, "the role of the new group")
    with person.client.stream("GET", f"{address}/logs", headers={"Accept": "text/event-stream"}) as stream:
        lines = stream.iter_lines()
        next(line for line in lines if line == "event: line")
        provider.set_user("cyd@lab.example")
        assert "event: error" in lines, "the stream ends"
    assert person.client.get(address).status_code == 404
    provider.set_user("cyd@lab.example", "admins")
    wait_until(lambda: person.client.get("/keys/self").json()["administrator"], "the rights of an administrator")
    provider.forget_user("cyd@lab.example")
    wait_until(lambda: not person.is_signed_in(), "the end of the session of who is gone")
    service.request("POST", f"{address}/stop")


@pytest.mark.parametrize("lie", ["none", "hs256", "key", "nonce", "audience", "issuer", "expired", "subject"])
def test_an_id_token_that_lies_is_refused(provider, person, lie):
    provider.lie(lie)
    refused = person.sign_in("dan@lab.example")
    assert refused.status_code == 401
    assert 'role="alert">The provider' in refused.text
    assert not person.is_signed_in()


def test_an_unverified_address_is_refused(provider, person):
    provider.set_user("fay@lab.example", email_verified=False)
    assert "no verified e-mail address" in person.sign_in("fay@lab.example").text
    assert not person.is_signed_in()


def test_an_answer_that_this_browser_did_not_ask_for_is_refused(provider, person, url):
    asked = person.begin()
    good = person.answer("gus@lab.example", asked)
    stranger = Person(url, provider)
    assert "not started in this browser" in stranger.client.get(good).text, "no cookie"
    stranger.begin()
    assert "not started in this browser" in stranger.client.get(good).text, "another state"
    other_state = re.sub("state=[^&]+", "state=x", good)
    assert "not started in this browser" in person.client.get(other_state).text
    assert "not started in this browser" in person.client.get(good).text, "one answer for each beginning"
    assert not person.is_signed_in()
    answer = person.answer("gus@lab.example", person.begin())
    cookies = dict(person.client.cookies)
    assert person.client.get(answer).status_code == 200
    replayed = httpx.get(url + urlsplit(answer)._replace(scheme="", netloc="").geturl(), cookies=cookies)
    assert replayed.status_code == 401
    stranger.client.close()


@pytest.mark.parametrize(
    "cookie", ["x", "{}", "[]", "5", '["ab"]', "[" * 5000, '{"state": 1}', '{"state": null}', "\xff"]
)
def test_a_cookie_that_the_service_did_not_write_is_refused(person, cookie):
    name = f"gradient_session_{person.client.base_url.port}_started"
    value = base64.urlsafe_b64encode(cookie.encode("latin-1")).decode()
    for state in ("", "1", "None", "%ED%A0%80"):
        refused = person.client.get(f"/ui/login/callback?code=x&state={state}", headers={"Cookie": f"{name}={value}"})
        assert refused.status_code in {400, 401, 503}, refused.text


@pytest.mark.parametrize(
    "wanted", ["https://evil.example/", "//evil.example/", "/ui/\\evil.example", "/ui//../..//evil.example", "/api"]
)
def test_no_sign_in_leads_to_another_site(person, provider, wanted):
    provider.set_user("hal@lab.example")
    page = person.sign_in("hal@lab.example", wanted)
    target = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', page.text)[1]
    assert target.startswith("/ui/")
    assert (
        urlsplit(str(httpx.URL(f"{person.client.base_url}").join(target))).netloc
        == person.client.base_url.netloc.decode()
    )


def test_the_command_line_gets_a_key_for_a_code_that_the_browser_shows(browser, provider, service, url, tmp_path):
    provider.set_user("ida@lab.example", "red", "admins")
    env = service.client_environment(XDG_CONFIG_HOME=str(tmp_path), BROWSER="true %s")
    terminal, side = pty.openpty()
    command = [str(CLI_PROGRAM), "login", "--browser", "--url", url]
    with subprocess.Popen(command, env=env, stdin=side, stderr=side, stdout=subprocess.PIPE) as client:
        shown = os.read(terminal, 1000).decode()
        browser.open(re.search(r"http\S+/ui/login/cli", shown)[0])
        browser.click("#provider")
        browser.wait_for("document.querySelector('input[name=sub]')")
        browser.fill("input[name=sub]", "ida@lab.example")
        browser.click("form button")
        browser.wait_for("document.querySelector('#give')")
        browser.click("#give")
        browser.wait_for("document.querySelector('#code')")
        code = browser.evaluate("document.querySelector('#code').dataset.copy")
        os.write(terminal, f"{code}\n".encode())
        assert client.wait(TIMEOUT_SECONDS) == 0, os.read(terminal, 1000)
    key = json.loads((tmp_path / "gradient" / "config.json").read_text())["apiKey"]

    def own():
        return httpx.get(f"{url}/keys/self", headers={"x-api-key": key})

    assert own().json()["name"].startswith("client on ")
    assert own().json()["administrator"]
    made = audit(service, action="key_created", address="127.0.0.1")
    assert own().json()["id"] in made[-1]["target"]
    again = httpx.post(f"{url}/original/apiTokens/createPublic?access_token={code}", json={"apiToken": "thief"})
    assert again.status_code == 401, "the code works once"
    provider.forget_user("ida@lab.example")
    wait_until(lambda: own().status_code == 401, "the end of the key with the account")


def test_an_api_key_gives_the_command_line_no_other_key(service, url):
    headers = {"x-api-key": service.cli_json["apiKey"], "Sec-Fetch-Site": "same-origin"}
    assert httpx.post(f"{url}/ui/login/cli", headers=headers).status_code == 403
