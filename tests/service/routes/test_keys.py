"""API keys over the API: administrators create and revoke them, everybody else has only the own one."""

import pytest
from support.live_service import make_job_body

from core.security import api_keys


@pytest.fixture
def other(database):
    with database.write() as session:
        return api_keys.create(session, "other")


@pytest.fixture
def administrator(settings, api_key):
    """Make the client's key that of an administrator."""
    settings.sign_in.administrators.append(api_key.split("_")[1])


@pytest.mark.usefixtures("administrator", "other")
def test_an_administrator_creates_lists_and_revokes_keys(client):
    created = client.post("/keys", json={"name": "ci", "days": 7})
    assert created.status_code == 201
    secret = created.json()["apiKey"]
    assert created.json()["expiresAt"] > created.json()["createdAt"]
    assert client.get("/jobs", headers={"x-api-key": secret}).status_code == 200
    listed = client.get("/keys")
    names = [one["name"] for one in listed.json()["keys"]]
    assert (sorted(names[:2]), names[2:]) == (["other", "tests"], ["ci"]), "two may be of the same millisecond"
    assert secret not in listed.text
    assert client.delete(f"/keys/{created.json()['id']}").status_code == 204
    assert client.get("/jobs", headers={"x-api-key": secret}).status_code == 401
    assert [one["state"] for one in client.get("/keys").json()["keys"]] == ["valid", "valid", "revoked"]


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [({"name": " "}, 400, "name"), ({"name": "x", "days": 0}, 400, "days"), ({"days": 1}, 422, "name")],
)
@pytest.mark.usefixtures("administrator")
def test_a_key_without_a_name_or_with_wrong_days_is_refused(client, body, status, field):
    refused = client.post("/keys", json=body)
    assert (refused.status_code, refused.json()["error"]["field"]) == (status, field)
    assert client.delete("/keys/none").status_code == 404


def test_everybody_else_sees_and_revokes_only_the_own_key(client, other):
    refused = client.post("/keys", json={"name": "mine"})
    assert (refused.status_code, refused.json()["error"]["name"]) == (403, "AdministratorOnly")
    assert "scope `admin`" in refused.json()["error"]["message"]
    assert [one["name"] for one in client.get("/keys").json()["keys"]] == ["tests"]
    assert client.delete(f"/keys/{other[0].id}").status_code == 403
    own = client.get("/keys").json()["keys"][0]["id"]
    assert client.delete(f"/keys/{own}").status_code == 204
    assert client.get("/keys").status_code == 401


@pytest.fixture
def ask(client, administrator):
    """Makes a key with these rights, and returns what sends requests with it."""
    del administrator

    def make(**rights):
        created = client.post("/keys", json={"name": "limited", **rights})
        assert created.status_code == 201, created.text
        assert rights.items() <= created.json().items()
        headers = {"x-api-key": created.json()["apiKey"]}
        return lambda method, path, **body: client.request(method, path, headers=headers, json=body or None)

    return make


def refusal(answer):
    assert (answer.status_code, answer.json()["error"]["name"]) == (403, "KeyRefused"), answer.text
    return answer.json()["error"]["message"]


def test_a_key_submits_only_to_its_projects(client, ask):
    client.post("/projects", json={"name": "vision"})
    asked = ask(projects=["vision"])
    job = asked("POST", "/jobs", **make_job_body(project="vision"))
    assert job.status_code == 201
    for wanted in ({"project": "speech"}, {}):
        for path in ("/jobs", "/jobs?dryRun=true", "/schedules"):
            schedule = {"cron": "0 0 * * *"} if path == "/schedules" else {}
            assert "only to vision" in refusal(asked("POST", path, **make_job_body(**wanted), **schedule))
    other = client.post("/jobs", json=make_job_body(project="speech")).json()["id"]
    assert asked("POST", f"/jobs/{other}/clone").status_code == 404
    assert "create none" in refusal(asked("POST", "/projects", name="mine"))
    assert [project["name"] for project in client.get("/projects").json()["projects"]] == ["speech", "vision"]


def test_a_key_uses_only_its_machine_types(ask):
    asked = ask(machineTypes=["CPU"])
    assert asked("POST", "/jobs", **make_job_body(machineType="CPU")).status_code == 201
    for path, more in (("/jobs", {}), ("/jobs?dryRun=true", {}), ("/schedules", {"cron": "0 0 * * *"})):
        assert "may not use TPU, only CPU" in refusal(asked("POST", path, **make_job_body(machineType="TPU"), **more))


def test_a_key_has_at_most_so_many_unfinished_jobs(ask):
    asked = ask(maxJobs=3)
    jobs = [asked("POST", "/jobs", **make_job_body()).json()["id"] for _ in range(2)]
    assert "has 2; 2 would be new" in refusal(asked("POST", "/jobs", **make_job_body(array="1-2")))
    assert asked("POST", "/jobs", **make_job_body()).status_code == 201
    assert "has 3; 1 would be new" in refusal(asked("POST", "/jobs", **make_job_body()))
    asked("POST", f"/jobs/{jobs[0]}/stop")
    assert asked("POST", "/jobs", **make_job_body()).status_code == 201


def test_a_key_with_the_scope_admin_is_an_administrators(ask, other):
    asked = ask(scope="admin", agent=True)
    assert asked("DELETE", f"/keys/{other[0].id}").status_code == 204
    own = asked("GET", "/keys/self").json()
    assert (own["name"], own["scope"], own["administrator"], own["agent"]) == ("limited", "admin", True, True)


@pytest.mark.parametrize(
    ("rights", "field"),
    [
        ({"scope": "write"}, "scope"),
        ({"projects": ["none"]}, "projects"),
        ({"projects": []}, "projects"),
        ({"machineTypes": ["none"]}, "machineTypes"),
        ({"maxJobs": 0}, "maxJobs"),
    ],
)
@pytest.mark.usefixtures("administrator")
def test_rights_that_no_key_can_have_are_refused(client, rights, field):
    refused = client.post("/keys", json={"name": "x", **rights})
    assert refused.status_code in {400, 404, 422}
    assert refused.json()["error"]["field"] == field


def test_the_address_of_a_keys_last_client_is_kept(client, stores):
    assert client.get("/keys/self").json()["lastAddress"] is None
    stores.keys.flush()
    assert client.get("/keys/self").json()["lastAddress"] == "127.0.0.1"
