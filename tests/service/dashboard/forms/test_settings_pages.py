"""The pages of the settings, as a browser without scripts uses them."""

import html
import re
from types import SimpleNamespace

import pytest

from core.security import api_keys


@pytest.fixture
def administrator(settings, api_key):
    """Make the browser's key that of an administrator."""
    settings.sign_in.administrators.append(api_key.split("_")[1])


@pytest.mark.usefixtures("administrator")
def test_a_key_is_shown_once_and_can_be_revoked(signed_in_browser, client, api_key):
    page = signed_in_browser.post("/ui/settings/keys", data={"name": "ci", "days": "7", "own_key": api_key})
    secret = re.search(r'id="created-key"[^>]*>(gj_\w+)<', page.text)[1]
    assert client.get("/jobs", headers={"x-api-key": secret}).status_code == 200
    again = signed_in_browser.get("/ui/settings/keys").text
    assert secret not in again
    key_id = secret.split("_")[1]
    assert f'id="key-{key_id}"' in again
    answer = signed_in_browser.post(f"/ui/settings/keys/{key_id}/revoke", data={"own_key": api_key})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/settings/keys")
    assert client.get("/jobs", headers={"x-api-key": secret}).status_code == 401


@pytest.mark.parametrize(("days", "words"), [("soon", "not a whole number"), ("0", "out of range")])
@pytest.mark.usefixtures("administrator")
def test_wrong_days_keep_the_name(signed_in_browser, client, api_key, days, words):
    page = signed_in_browser.post("/ui/settings/keys", data={"name": "kept", "days": days, "own_key": api_key})
    assert (page.status_code, words in page.text, 'value="kept"' in page.text) == (400, True, True)
    assert len(client.get("/keys").json()["keys"]) == 1


@pytest.mark.parametrize("whose", ["nobody's", "no key", "another's"])
@pytest.mark.usefixtures("administrator")
def test_a_copied_session_makes_and_revokes_no_key(signed_in_browser, client, api_key, database, whose):
    with database.write() as session:
        other, secret = api_keys.create(session, "other")
    own_key = {"nobody's": {}, "no key": {"own_key": f"{api_key}x"}, "another's": {"own_key": secret}}[whose]
    before = client.get("/keys").json()["keys"]
    page = signed_in_browser.post("/ui/settings/keys", data={"name": "kept"} | own_key)
    assert (page.status_code, "Enter the API key" in page.text, 'value="kept"' in page.text) == (403, True, True)
    revoked = signed_in_browser.post(f"/ui/settings/keys/{other.id}/revoke", data=own_key)
    assert (revoked.status_code, "Enter the API key" in revoked.text) == (403, True)
    assert client.get("/keys").json()["keys"] == before


@pytest.mark.parametrize("own_key", [{}, {"own_key": "gj_wrong"}], ids=["none", "wrong"])
@pytest.mark.parametrize(
    ("page", "form"),
    [
        ("secrets", {"name": "kept", "value": "hush"}),
        ("secrets", {"name": "kept", "action": "delete"}),
        ("registries", {"host": "kept", "username": "alice", "password": "hush"}),
        ("registries", {"host": "kept", "action": "delete"}),
        ("notifications", {"name": "kept", "url": "https://example.org/hush"}),
    ],
)
@pytest.mark.usefixtures("administrator")
def test_a_copied_session_changes_no_secrets_and_registries(signed_in_browser, client, page, form, own_key):
    client.put("/secrets/kept", json={"value": "before"})
    client.put("/registries/kept", json={"username": "bob", "password": "before"})
    client.put("/notifications/other", json={"url": "https://example.org/before"})
    before = client.get(f"/{page}").json()
    refused = signed_in_browser.post(f"/ui/settings/{page}", data=form | own_key)
    text = refused.text
    assert (refused.status_code, "Enter the API key" in text, 'value="kept"' in text, "hush" in text) == (403, 1, 1, 0)
    assert client.get(f"/{page}").json() == before != {page: []}


def test_who_is_no_administrator_is_told_so(signed_in_browser):
    page = signed_in_browser.get("/ui/settings/keys").text
    assert "Only administrators can create keys" in page
    assert "create-key" not in page
    for answer in (
        signed_in_browser.post("/ui/settings/keys", data={"name": "x"}),
        signed_in_browser.post("/ui/settings/keys/abcdefgh/revoke"),
        signed_in_browser.get("/ui/settings/health"),
    ):
        assert (answer.status_code, "Only administrators may do this" in answer.text) == (403, True)


def test_secrets_are_stored_and_deleted_by_name_and_never_shown(signed_in_browser, client, api_key):
    project = client.post("/projects", json={"name": "vision"}).json()["id"]
    stored = {"project": "vision", "name": "HF_TOKEN", "value": "line one\r\nline two", "own_key": api_key}
    answer = signed_in_browser.post("/ui/settings/secrets", data=stored)
    assert answer.headers["location"] == "/ui/settings/secrets?project=vision"
    page = signed_in_browser.get(answer.headers["location"]).text
    assert "<code>HF_TOKEN</code>" in page
    assert "line one" not in page
    assert [one["name"] for one in client.get(f"/projects/{project}/secrets").json()["secrets"]] == ["HF_TOKEN"]
    assert client.get("/secrets").json()["secrets"] == []
    gone = {"project": "vision", "name": "HF_TOKEN", "action": "delete", "own_key": api_key}
    assert signed_in_browser.post("/ui/settings/secrets", data=gone).status_code == 303
    assert client.get(f"/projects/{project}/secrets").json()["secrets"] == []


def test_a_wrong_secret_keeps_its_name_but_not_its_value(signed_in_browser, api_key):
    page = signed_in_browser.post("/ui/settings/secrets", data={"name": "9 lives", "value": "hush", "own_key": api_key})
    assert page.status_code == 400
    assert 'value="9 lives"' in page.text
    assert "is not a name for a secret" in page.text
    assert "hush" not in page.text
    assert signed_in_browser.get("/ui/settings/secrets?project=none").status_code == 404


def test_registries_are_stored_and_deleted_without_showing_the_password(signed_in_browser, client, api_key):
    login = {"host": "registry.example.org", "username": "alice", "password": "hush", "push": "on", "own_key": api_key}
    assert signed_in_browser.post("/ui/settings/registries", data=login).status_code == 303
    (stored,) = client.get("/registries").json()["registries"]
    assert (stored["host"], stored["username"], stored["push"]) == ("registry.example.org", "alice", True)
    page = signed_in_browser.get("/ui/settings/registries").text
    assert "alice" in page
    assert "hush" not in page
    wrong = signed_in_browser.post("/ui/settings/registries", data=login | {"host": "not a host"})
    assert (wrong.status_code, 'value="alice"' in wrong.text, "hush" in wrong.text) == (400, True, False)
    gone = {"host": "registry.example.org", "action": "delete", "own_key": api_key}
    assert signed_in_browser.post("/ui/settings/registries", data=gone).status_code == 303
    assert client.get("/registries").json()["registries"] == []


def test_the_server_page_shows_retention_and_images(signed_in_browser, client):
    page = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", signed_in_browser.get("/ui/settings/server").text))
    assert "Artifacts forever Workspaces 30 days" in page
    assert client.get("/images").json()["images"][0]["image"] in page


@pytest.mark.usefixtures("administrator")
def test_health_shows_the_findings_to_administrators(app, signed_in_browser):
    assert "gradient-server doctor" in signed_in_browser.get("/ui/settings/health").text
    finding = SimpleNamespace(check="disk", status="warning", message="Nearly full.", fix="Run `df`.")
    app.state.run_checks = lambda: [finding]
    page = signed_in_browser.get("/ui/settings/health").text
    assert "Nearly full." in page
    assert "<code>df</code>" in page


def test_receivers_are_saved_tested_and_deleted(signed_in_browser, client, api_key):
    address = "/ui/settings/notifications"
    assert "No receivers yet" in signed_in_browser.get(address).text
    saved = {"name": "team", "url": "https://example.org/hush", "jobs": "mine", "quiet": "5", "own_key": api_key}
    page = signed_in_browser.post(address, data=saved).text
    assert re.search(r"whsec_[\w+/=]{44}", page)
    [receiver] = client.get("/notifications").json()["receivers"]
    assert (receiver["jobs"], receiver["quietSeconds"]) == (["mine"], 300)
    assert signed_in_browser.post(address, data={"name": "team", "action": "test"}).status_code == 303
    [message] = client.get("/notifications/team/deliveries").json()["deliveries"]
    page = signed_in_browser.get(address).text
    assert "A test of the receiver team" in page
    assert "whsec_" not in page
    assert "hush" not in page
    again = {"name": "team", "action": "replay", "message": message["id"]}
    assert signed_in_browser.post(address, data=again).status_code == 303
    gone = {"name": "team", "action": "delete", "own_key": api_key}
    assert signed_in_browser.post(address, data=gone).status_code == 303
    assert client.get("/notifications").json() == {"receivers": []}


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"name": "9 lives"}, "is not a name for a receiver"),
        ({"events": "job.fail"}, "Did you mean job.failed?"),
        ({"quiet": "soon"}, "not a whole number"),
        ({"url": "hush://x"}, "scheme is not supported"),
    ],
)
def test_a_wrong_receiver_keeps_what_is_not_secret(signed_in_browser, api_key, wrong, words):
    form = {"name": "team", "url": "https://example.org/hush", "events": "job.failed", "own_key": api_key} | wrong
    page = signed_in_browser.post("/ui/settings/notifications", data=form)
    assert page.status_code == 400
    assert words in html.unescape(page.text)
    assert f'value="{form["name"]}"' in page.text
    assert "hush" not in page.text
