"""Secrets and registries over HTTP: values go in, and never come out."""

import pytest
from support.live_service import make_job_body

VALUE = "canary-of-the-service"


def error(answer):
    found = answer.json()["error"]
    return found["status"], found["name"], found.get("field")


def test_a_secret_is_stored_listed_changed_and_forgotten(client):
    made = client.put("/secrets/wandb", json={"value": VALUE})
    assert (made.status_code, made.json()["name"], made.json()["projectId"]) == (201, "wandb", None)
    changed = client.put("/secrets/wandb", json={"value": f"{VALUE}-2"})
    assert changed.status_code == 200
    assert changed.json()["createdAt"] == made.json()["createdAt"]
    listed = client.get("/secrets")
    assert [one["name"] for one in listed.json()["secrets"]] == ["wandb"]
    assert VALUE not in made.text + changed.text + listed.text
    assert client.delete("/secrets/wandb").status_code == 204
    assert error(client.delete("/secrets/wandb"))[:2] == (404, "CredentialNotFound")
    assert client.get("/secrets").json() == {"secrets": []}


def test_a_projects_secrets_are_its_own(client):
    vision, speech = (client.post("/projects", json={"name": name}).json()["id"] for name in ("vision", "speech"))
    made = client.put(f"/projects/{vision}/secrets/token", json={"value": VALUE}).json()
    assert made["projectId"] == vision
    names = [
        [one["name"] for one in client.get(path).json()["secrets"]]
        for path in (f"/projects/{vision}/secrets", f"/projects/{speech}/secrets", "/secrets")
    ]
    assert names == [["token"], [], []]
    job = make_job_body(envVars={"TOKEN": "secret:token"})
    assert client.post("/jobs", json=job | {"projectId": vision}).status_code == 201
    assert client.post("/jobs?dryRun=true", json=job | {"project": "vision"}).status_code == 200
    for where in ({"projectId": speech}, {"project": "speech"}, {"project": "a new one"}, {}):
        for path in ("/jobs", "/jobs?dryRun=true"):
            assert error(client.post(path, json=job | where)) == (400, "SpecInvalid", "envVars.TOKEN")
    assert client.get("/projects").json()["projects"][0]["name"] != "a new one"
    assert client.delete(f"/projects/{vision}/secrets/token").status_code == 204
    assert error(client.put("/projects/none/secrets/token", json={"value": VALUE}))[:2] == (404, "ProjectNotFound")


def test_a_job_shows_the_name_of_its_secret_and_its_clone_is_checked_again(client):
    client.put("/secrets/wandb", json={"value": VALUE})
    job = client.post("/jobs", json=make_job_body(envVars={"WANDB_API_KEY": "secret:wandb"})).json()
    assert job["envVars"] == {"WANDB_API_KEY": "secret:wandb"}
    assert client.post(f"/jobs/{job['id']}/clone").status_code == 201
    client.delete("/secrets/wandb")
    assert error(client.post(f"/jobs/{job['id']}/clone")) == (400, "SpecInvalid", "envVars.WANDB_API_KEY")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/secrets/a", {"value": 17_171_717}),
        ("/secrets/a", {"value": ""}),
        ("/secrets/a", {"value": f"{VALUE}\0"}),
        ("/secrets/a", {"value": VALUE * 4000}),
        ("/secrets/a%20b", {"value": VALUE}),
        ("/registries/ghcr.io", {"username": "alice", "password": 17_171_717}),
        ("/registries/ghcr.io", {"username": "", "password": VALUE}),
        ("/registries/no%20host", {"username": "alice", "password": VALUE}),
    ],
)
def test_what_is_refused_is_not_repeated(client, path, body):
    answer = client.put(path, json=body)
    assert answer.status_code in {400, 422}
    assert "canary" not in answer.text
    assert "171717" not in answer.text
    broken = client.put(path, content=f'{{"value": "{VALUE}", "password": "{VALUE}"')
    assert broken.status_code == 422
    assert "canary" not in broken.text


def test_a_registry_is_stored_listed_and_forgotten(client):
    made = client.put("/registries/GHCR.io", json={"username": "alice", "password": VALUE})
    assert (made.status_code, made.json()["host"], made.json()["username"]) == (201, "ghcr.io", "alice")
    assert (
        client.put("/registries/registry.example:5000", json={"username": "bob", "password": VALUE}).status_code == 201
    )
    assert client.put("/registries/ghcr.io", json={"username": "carol", "password": VALUE}).status_code == 200
    listed = client.get("/registries")
    assert [(one["host"], one["username"]) for one in listed.json()["registries"]] == [
        ("ghcr.io", "carol"),
        ("registry.example:5000", "bob"),
    ]
    assert VALUE not in made.text + listed.text
    assert client.delete("/registries/registry.example:5000").status_code == 204
    assert error(client.delete("/registries/registry.example:5000"))[:2] == (404, "CredentialNotFound")


def test_a_password_for_one_job_comes_with_a_name_and_an_image(docker_client):
    client = docker_client
    own = {"container": "ghcr.io/team/image", "registryUsername": "alice", "registryPassword": VALUE}
    made = client.post("/jobs", json=make_job_body(**own), headers={"Idempotency-Key": "k"})
    assert (made.status_code, made.json()["registryUsername"]) == (201, "alice")
    again = client.post("/jobs", json=make_job_body(**own), headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.json()["id"]) == (200, made.json()["id"])
    planned = client.post("/jobs?dryRun=true", json=make_job_body(**own))
    assert VALUE not in made.text + planned.text
    for lacking in ("registryPassword", "registryUsername", "container"):
        rest = {name: value for name, value in own.items() if name != lacking}
        assert error(client.post("/jobs", json=make_job_body(**rest))) == (400, "SpecInvalid", lacking)
    assert error(client.post(f"/jobs/{made.json()['id']}/clone")) == (400, "SpecInvalid", "registryPassword")


def test_keys_that_are_none_are_said_before_anything_is_made(docker_client, stores):
    client = docker_client
    (stores.settings.root / "secrets.key").write_text("broken")
    (stores.settings.root / "secrets.key").chmod(0o600)
    assert error(client.put("/secrets/a", json={"value": VALUE}))[:2] == (503, "SecretUnreadable")
    own = {"container": "ghcr.io/team/image", "registryUsername": "alice", "registryPassword": VALUE}
    assert error(client.post("/jobs", json=make_job_body(**own)))[:2] == (503, "SecretUnreadable")
    assert client.get("/jobs").json()["jobs"] == []


@pytest.mark.parametrize("ports", [["8080:80", "6006:https"], "8080:80,:6006:https"])
def test_ports_are_taken_as_a_list_or_comma_separated(client, ports):
    made = client.post("/jobs", json=make_job_body(ports=ports))
    assert made.json()["ports"] == [
        {"internal": 80, "external": 8080, "url": None},
        {"internal": 6006, "external": None, "url": None},
    ]
    for wrong, status in ((["80:80"], 400), ("a", 400), (8080, 422), ([8080], 422)):
        answer = client.post("/jobs", json=make_job_body(ports=wrong))
        assert error(answer)[0::2] == (status, "ports")


def test_a_held_port_is_a_link_until_the_job_lets_go(client, worker):
    job_id = client.post("/jobs", json=make_job_body(ports="8443:443:https")).json()["id"]
    job = worker.claim()
    assert job.id == job_id
    assert client.get(f"/jobs/{job_id}").json()["ports"][0]["url"] == "https://h.example:8443"
    assert client.get("/jobs").json()["jobs"][0]["ports"][0]["url"] == "https://h.example:8443"
    worker.end(job, "completed", exit_code=0)
    assert client.get(f"/jobs/{job_id}").json()["ports"][0]["url"] is None


def test_a_projects_registry_is_its_own_and_says_whether_it_may_push(client):
    project = client.post("/projects", json={"name": "vision"}).json()["id"]
    place = f"/projects/{project}/registries"
    made = client.put(f"{place}/ghcr.io", json={"username": "alice", "password": VALUE, "push": True})
    assert (made.status_code, made.json()["projectId"], made.json()["push"]) == (201, project, True)
    assert client.put("/registries/ghcr.io", json={"username": "bob", "password": VALUE}).json()["push"] is False
    told = [client.get(where).json()["registries"] for where in (place, "/registries")]
    assert [[(one["username"], one["projectId"]) for one in those] for those in told] == [
        [("alice", project)],
        [("bob", None)],
    ]
    assert VALUE not in str(told)
    assert client.delete(f"{place}/ghcr.io").status_code == 204
    assert error(client.delete(f"{place}/ghcr.io"))[:2] == (404, "CredentialNotFound")
    assert [one["username"] for one in client.get("/registries").json()["registries"]] == ["bob"]
