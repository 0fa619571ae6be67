"""Every route of the application, as its own table of routes has them, asked by those who may not use it.

A new route is asked too, and has to refuse everybody whom it does not let in on purpose.
"""

import hashlib
import re

import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import update
from support.live_service import make_job_body

from core.db.database import now
from core.db.models.credentials import ApiKey, BrowserSession
from core.security import api_keys
from core.security.key_rights import KeyRights
from core.settings import Settings
from service.auth.session_cookie import cookie_name

PUBLIC = {
    ("GET", "/health"),
    ("GET", "/readiness"),
    ("GET", "/openapi.json"),
    ("HEAD", "/openapi.json"),
    ("GET", "/"),
    ("GET", "/ui/login"),
    ("GET", "/ui/login/provider"),
    ("GET", "/ui/static/{version}/{name}"),
    ("GET", "/client"),
    ("GET", "/client/{name}"),
}
"""Public routes: they say nothing of any job."""
OWN_FORMS_ALONE = {("POST", "/ui/login"), ("POST", "/ui/logout")}
"""Routes that need no key, but proof that one of our pages sent the request."""
COOKIE = cookie_name(Settings())
SIGN_IN = {
    ("POST", "/original/users/login"),
    ("POST", "/original/apiTokens/createPublic"),
    ("GET", "/ui/login/callback"),
}
"""Routes that take a password, an answer of a provider, or a code issued for one: any other attempt is refused."""
REFUSED = {401, 403}
VALUES = {"job_id": "j1", "project_id": "p1", "sha256": "0" * 64}
"""Values for parameters of paths; `x` for all others."""


def routes(app):
    """Method and path of every route."""
    found = {
        (method, route.path_format)
        for route in iter_route_contexts(app.routes)
        for method in sorted(route.methods or ())
    }
    assert len(found) > 60
    return sorted(found)


def guarded(app):
    return [route for route in routes(app) if route not in PUBLIC | SIGN_IN]


def address(path, **values):
    return re.sub(r"\{(\w+)\}", lambda found: (VALUES | values).get(found[1], "x"), path)


@pytest.fixture
def job_id(client):
    return client.post("/jobs", json=make_job_body()).json()["id"]


@pytest.fixture
def strangers(stores, database, api_key):
    """Headers that let nobody in, by what is wrong with them."""
    key_id = api_key.split("_")[1]
    with database.write() as session:
        revoked, of_revoked = api_keys.create(session, "revoked")
        expired, of_expired = api_keys.create(session, "expired", days=1)
    sessions = {name: stores.sessions.open(key_id) for name in ("over", "ended")}
    sessions |= {"of a revoked key": stores.sessions.open(revoked.id)}
    sessions |= {"of an expired key": stores.sessions.open(expired.id)}
    stamps = {
        "link": stores.signer.sign("artifact-link", "j1/x", revoked.id),
        "s3": f"j1.{stores.signer.sign('s3-session', 'j1', revoked.id)}",
    }
    with database.write() as session:
        api_keys.revoke(session, revoked.id)
        session.execute(update(ApiKey).where(ApiKey.id == expired.id).values(expires_at=now(-1)))
        over = hashlib.sha256(sessions["over"].encode()).digest()
        session.execute(update(BrowserSession).where(BrowserSession.sha256 == over).values(expires_at=now(-1)))
    stores.sessions.end(sessions["ended"])
    wrong = api_key[:-1] + ("a" if api_key[-1] != "a" else "b")
    by_key = {"malformed": "nonsense", "wrong": wrong, "revoked": of_revoked, "expired": of_expired}
    return (
        {"nothing": {}, "empty key": {"x-api-key": ""}, "basic": {"Authorization": "Basic dTpw"}}
        | {f"{name} key": {"x-api-key": key} for name, key in by_key.items()}
        | {f"{name} bearer": {"Authorization": f"Bearer {key}"} for name, key in by_key.items()}
        | {f"session {name}": {"Cookie": f"{COOKIE}={token}"} for name, token in sessions.items()}
        | {"forged session": {"Cookie": f"{COOKIE}=forged"}, "s3 token": {"x-amz-security-token": stamps["s3"]}}
        | {
            "session as key": {"x-api-key": sessions["ended"]},
            "stamp as bearer": {"Authorization": f"Bearer {stamps['link']}"},
        }
    )


@pytest.mark.parametrize("share", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_every_route_refuses_whoever_may_not_use_it(app, anonymous_client, strangers, job_id, share):
    """Each route is asked by every fourth of them in turn, so that routes beside each other are asked by all."""
    for number, (method, path) in enumerate(guarded(app)):
        asking = {"nothing": {}} | dict([*strangers.items()][number % share :: share])
        for who, headers in asking.items():
            # Without a key, nobody learns what else is wrong with a request.
            answer = anonymous_client.request(
                method, address(path), headers=headers, params={"limit": "x"}, content=b"{"
            )
            assert answer.status_code in REFUSED, (method, path, who, answer.text)
            assert job_id not in answer.text
            if not path.startswith(("/_s3/", "/ui/log")):
                assert answer.json()["error"]["name"] == "Unauthorized", (method, path, who)
                assert answer.headers["www-authenticate"] == "Bearer"


def test_a_key_with_the_scope_read_reads_every_route_and_changes_nothing(app, anonymous_client, database):
    with database.write() as session:
        _, secret = api_keys.create(session, "reader", rights=KeyRights(scope="read"))
    refused, let_in = set(), set()
    for method, path in guarded(app):
        if path.startswith(("/worker/", "/_s3/")) or (method, path) in OWN_FORMS_ALONE:
            continue  # they know no API key
        headers = {"x-api-key": secret, "Sec-Fetch-Site": "same-origin"}
        answer = anonymous_client.request(method, address(path), headers=headers)
        is_refused = answer.status_code == 403 and "may only read" in answer.text
        (refused if is_refused else let_in).add((method, path))
    assert {method for method, _ in refused} == {"DELETE", "PATCH", "POST", "PUT"}
    assert {path for method, path in let_in if method not in {"GET", "HEAD"}} == {
        "/original/jobs/getPublicJob",
        "/tensorboards",
        "/ui/tensorboard",
        "/jobs/{job_id}/artifacts/contents",
        "/mcp",
    }


def test_every_page_leads_whoever_may_not_see_it_to_the_sign_in(app, anonymous_client, strangers):
    pages = [path for method, path in guarded(app) if method == "GET" and path.startswith("/ui/")]
    assert len(pages) > 4
    for path in pages:
        for who in (
            "nothing",
            "session ended",
            "session over",
            "session of a revoked key",
            "session of an expired key",
        ):
            answer = anonymous_client.get(address(path), headers=strangers[who] | {"Accept": "text/html"})
            assert (answer.status_code, answer.headers["location"][:14]) == (303, "/ui/login?next"), (path, who)


def test_no_session_changes_anything_but_by_a_form_of_ours(app, anonymous_client, stores, api_key, job_id, client):
    token = stores.sessions.open(api_key.split("_")[1])
    foreign = (
        {},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.2:27000"},
        {"Origin": "http://evil.example"},
    )
    before = client.get(f"/jobs/{job_id}").json()
    changing = [one for one in guarded(app) if one[0] not in {"GET", "HEAD"}]
    assert len(changing) > 25
    for method, path in changing:
        for headers in foreign:
            asked = headers | {"Cookie": f"{COOKIE}={token}"}
            answer = anonymous_client.request(method, address(path, job_id=job_id), headers=asked)
            assert answer.status_code in REFUSED, (method, path, headers, answer.text)
    assert client.get(f"/jobs/{job_id}").json() == before
    assert stores.sessions.key(token).id == api_key.split("_")[1], "signed in still"


def test_what_is_public_is_as_few_as_it_is_listed(app, anonymous_client):
    assert set(routes(app)) >= PUBLIC | OWN_FORMS_ALONE
    for method, path in sorted(PUBLIC - {("GET", "/ui/static/{version}/{name}"), ("GET", "/client/{name}")}):
        assert anonymous_client.request(method, path).status_code in {200, 303}, (method, path)
    assert anonymous_client.get("/ui/static/x/style.css").status_code in {200, 404}
    assert anonymous_client.get(anonymous_client.get("/client").text.strip()).status_code == 200


def test_signing_in_takes_a_password(app, anonymous_client, strangers):
    assert set(routes(app)) >= SIGN_IN
    for method, path in sorted(SIGN_IN):
        for who in ("nothing", "wrong key", "session ended"):
            answer = anonymous_client.request(method, path, headers=strangers[who], content=b"{")
            sent_back = answer.headers.get("location") == "/ui/login"  # no provider is set
            assert answer.status_code in {400, 401, 403, 422, 429} or sent_back, (path, who)
            assert not re.search(r"gj_\w", answer.text)
