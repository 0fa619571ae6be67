"""Jobs, comparisons and projects are changed by their owner and administrators alone, on every route."""

import re

import pytest
from fastapi.routing import iter_route_contexts
from support.live_service import make_job_body

from core.security import users
from service.auth.authentication import READING_ENDPOINTS
from service.auth.ownership import OPEN_ENDPOINTS

READING = {"GET", "HEAD"}
OTHERS = {
    "action": "suspend",
    "session_id": "e1",
    "name": "TOKEN",
    "host": "r.example",
    "worker": "w",
    "member": "k1",
    "attempt": "1",
    "path": "main.py",
    "number": "0",
    "delivery_id": "msg_1",
}
"""Other parameters of paths."""
HANDSHAKE = {
    "connection": "upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
"""Headers that ask for a WebSocket."""
BODIES = {
    "change_registries": lambda _ids: {"project": "default", "host": "r.example", "username": "u", "password": "p"},
    "change_receivers": lambda ids: {"name": ids["receiver"], "action": "test"},
    "change_secrets": lambda _ids: {"project": "default", "name": "TOKEN", "value": "x"},
    "original_update_tags": lambda ids: {"entity": "job", "entityId": ids["job_id"], "tags": ["x"]},
    "rename_comparison": lambda _ids: {"name": "x"},
    "change_job": lambda _ids: {"add": ["x"]},
    "save_receiver": lambda _ids: {"url": "https://example.org"},
    "request_trial": lambda _ids: {"key": "k" * 16},
    "report_trial": lambda _ids: {"key": "k" * 16},
}
BY_BODY = {"original_update_tags", "change_receivers", "change_registries", "change_secrets"}
"""Routes that change a job or a project which their body names."""
FORMS = {"change_receivers", "change_registries", "change_secrets"}
OWNED = ("{job_id}", "{comparison_id}", "{project_id}", "{schedule_id}", "{sweep_id}", "{receiver}")
OF_ALL = ("/secrets/", "/registries/", "/workers/", "/ui/machines/")
OF_WORKERS = "/worker/"
OF_SEVERAL = {"act_on_jobs"}
"""Routes that change several jobs, and answer for each."""
OTHER = {
    "call_tools",
    "add_ssh_keys",
    "change_views",
    "choose_columns",
    "compare_jobs",
    "import_comparison",
    "create_key",
    "create_project",
    "find_missing_contents",
    "give_code",
    "original_create_job",
    "original_create_key",
    "original_create_project",
    "original_get_public_job",
    "original_login",
    "revoke_key",
    "sign_in",
    "sign_out",
    "store_workspace",
    "submit_comparison",
    "submit_form",
    "open_tensorboard",
    "submit_job",
    "submit_schedule",
    "submit_sweep",
}
"""Routes that change no job of another key, but only create, or change what all keys share or the caller alone has."""


@pytest.fixture
def ids(client):
    """Ids of what the key of `client` owns, by the parameter of a path."""
    first, second = (client.post("/jobs", json=make_job_body()).json() for _ in range(2))
    made = client.post("/comparisons/from-jobs", json={"jobs": [first["id"], second["id"]]})
    assert made.status_code == 201, made.text
    schedule = client.post("/schedules", json=make_job_body(cron="0 3 * * *")).json()["id"]
    tried = {"space": {"a": "1,2"}, "method": "grid"}
    sweep = client.post("/sweeps", json=make_job_body(**tried)).json()["id"]
    return {
        "job_id": first["id"],
        "comparison_id": made.json()["id"],
        "project_id": first["projectId"],
        "schedule_id": schedule,
        "sweep_id": sweep,
        "receiver": client.put("/notifications/team", json={"url": "https://example.org"}).json()["name"],
    }


def changing_routes(app):
    """Name, method and path of every route that may change something; the method of a WebSocket is GET."""
    for route in iter_route_contexts(app.routes):
        methods = set(route.methods or {"WEBSOCKET"}) - READING
        yield from ((route.endpoint.__name__, route.name, method, route.path_format) for method in methods)


@pytest.mark.usefixtures("live_server")  # for the handshakes of WebSockets
def test_every_route_that_changes_a_job_refuses_all_other_keys(app, anonymous_client, client, ids, bob):
    before = client.get(f"/jobs/{ids['job_id']}").json()
    checked = set()
    for function, name, method, path in changing_routes(app):
        of_all, of_workers = path.startswith(OF_ALL), path.startswith(OF_WORKERS)
        if not of_all and not of_workers and name not in BY_BODY and not any(parameter in path for parameter in OWNED):
            assert name in OTHER | OF_SEVERAL, f"{method} {path} changes whose jobs? Name it here, or check the owner."
            continue
        if function in OPEN_ENDPOINTS | READING_ENDPOINTS:
            continue
        headers = bob[1] | {"sec-fetch-site": "same-origin"}
        answer = anonymous_client.request(
            "GET" if method == "WEBSOCKET" else method,
            re.sub(r":\w+(?=})", "", path).format_map(ids | OTHERS),
            headers=headers | (HANDSHAKE if method == "WEBSOCKET" else {}),
            params={"port": 80},
            **{"data" if name in FORMS else "json": BODIES.get(name, lambda _ids: None)(ids)},
        )
        if of_workers:  # where no key of a person is heard
            assert answer.status_code == 401, (method, path, answer.text)
            continue
        assert answer.status_code == 403, (method, path, answer.text)
        why = "Only administrators may do this" if of_all else "belongs to the API key 'tests'"
        assert why in answer.text, (method, path)
        checked.add(name)
    assert len(checked) > 25
    assert client.get(f"/jobs/{ids['job_id']}").json() == before
    assert client.get("/secrets").json() == {"secrets": []}


def test_the_first_key_may_change_what_belongs_to_all_until_there_is_another(client, worker, add_key):
    worker.register()
    alone = [
        client.put("/secrets/TOKEN", json={"value": "x"}),
        client.put("/registries/r.example", json={"username": "u", "password": "p"}),
        client.post("/workers/w/drain"),
    ]
    assert all(answer.status_code < 300 for answer in alone), [answer.text for answer in alone]
    add_key("bob")
    answer = client.post("/workers/w/resume")
    assert answer.status_code == 403
    assert "GRADIENT_SIGN_IN__ADMINISTRATORS" in answer.text


def test_a_project_belongs_to_who_made_it_and_its_owner_and_administrators_change_it(client, settings, bob):
    bobs = client.post("/jobs", json=make_job_body(project="bobs"), headers=bob[1]).json()["projectId"]
    path = f"/projects/{bobs}"
    assert client.patch(path, json={"maxRunning": 1}).status_code == 403
    assert client.put(f"{path}/storage/main.py", content=b"print('mine')").status_code == 403
    assert client.patch(path, json={"maxRunning": 1}, headers=bob[1]).status_code == 200
    assert client.put(f"{path}/storage/main.py", content=b"print('bobs')", headers=bob[1]).status_code == 200
    assert client.put(f"{path}/secrets/TOKEN", json={"value": "x"}, headers=bob[1]).status_code == 201
    settings.sign_in.administrators.append(client.headers["x-api-key"].split("_")[1])
    assert client.patch(path, json={"maxRunning": 2}).status_code == 200


@pytest.mark.parametrize("action", ["stop", "delete", "tag"])
def test_an_action_on_several_jobs_is_refused_for_those_of_others(client, ids, bob, action):
    own = client.post("/jobs", json=make_job_body(), headers=bob[1]).json()["id"]
    body = {"action": action, "ids": [ids["job_id"], own], "add": ["x"] if action == "tag" else []}
    results = client.post("/jobs/actions", json=body, headers=bob[1]).json()["results"]
    assert [one["done"] for one in results] == [False, True]
    assert results[0]["error"]["name"] == "OwnerOnly"


def test_others_read_and_clone_a_job(client, ids, bob):
    job = client.get(f"/jobs/{ids['job_id']}", headers=bob[1]).json()
    assert (job["owner"], job["ownerKey"]) == ("tests", client.headers["x-api-key"].split("_")[1])
    clone = client.post(f"/jobs/{ids['job_id']}/clone", headers=bob[1])
    assert (clone.status_code, clone.json()["ownerKey"]) == (201, bob[0])


def test_administrators_and_the_keys_of_one_user_change_its_jobs(client, settings, database, ids, add_key, bob):
    with database.write() as session:
        user = users.create(session, "carol@example.org", "0123456789")
    _, old = add_key("laptop", user.id)
    _, new = add_key("desktop", user.id)
    carols = client.post("/jobs", json=make_job_body(), headers=old).json()["id"]
    assert client.post(f"/jobs/{carols}/stop", headers=bob[1]).status_code == 403
    assert client.post(f"/jobs/{carols}/stop", headers=new).status_code == 200
    assert client.post(f"/jobs/{ids['job_id']}/stop", headers=new).status_code == 403
    settings.sign_in.administrators.append(bob[0])
    assert client.delete(f"/jobs/{ids['job_id']}", headers=bob[1]).status_code == 204


def test_a_team_may_share_its_jobs(client, settings, ids, bob):
    settings.sign_in.shared_jobs = True
    assert client.post(f"/jobs/{ids['job_id']}/stop", headers=bob[1]).status_code == 200
