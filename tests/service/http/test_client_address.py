"""Addresses in jobs: those that nothing may connect to are refused at once; passwords in them are kept apart."""

import pytest
from support.forbidden_host_spellings import FORBIDDEN_HOSTS
from support.live_service import make_job_body

from core.db.models.credentials import GitLogin
from core.jobs import queries
from core.security import credentials
from core.security.encryption import Vault
from core.settings.network import EgressSettings

PASSWORD = "PW-CANARY-77"
ADDRESS = f"https://me:{PASSWORD}@git.example/repo.git#main"
REGISTRIES = [host for host in FORBIDDEN_HOSTS if "." in host or host.lower() == "localhost"]


def refusal(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["field"]


def test_a_git_server_that_is_not_public_is_refused(client):
    for host in FORBIDDEN_HOSTS:
        assert (
            refusal(client.post("/jobs?dryRun=true", json=make_job_body(workspace=f"https://u:p@{host}:22/x")))
            == "workspace"
        )


def test_a_registry_that_is_not_public_is_refused(client):
    for host in REGISTRIES:
        if not host.startswith("["):  # no image's name
            assert (
                refusal(client.post("/jobs?dryRun=true", json=make_job_body(container=f"{host}:5000/x"))) == "container"
            )
        assert refusal(client.put(f"/registries/{host}", json={"username": "me", "password": "x"})) == "host"


def test_an_administrator_opens_a_registry_and_a_git_server(client, stores):
    stores.settings.machines.simulate = False
    stores.settings.egress = EgressSettings(allowed=["10.0.0.5", "localhost"])
    assert client.post("/jobs", json=make_job_body(container="10.0.0.5:5000/x")).status_code == 201
    assert client.post("/jobs", json=make_job_body(workspace="https://10.0.0.5/x.git")).status_code == 201
    sent = client.put("/registries/localhost:5000", json={"username": "me", "password": "x"})
    assert sent.status_code == 201


@pytest.mark.parametrize("scheme", ["http", "ssh", "git", "file", "ext"])
def test_other_schemes_are_refused(client, scheme):
    assert refusal(client.post("/jobs", json=make_job_body(workspace=f"{scheme}://github.com/repo.git"))) == "workspace"


def login_of(stores, job_id):
    with stores.database.read() as session:
        return credentials.git_login(session, Vault(stores.settings), queries.get_row(session, job_id))


def everything_kept(stores, client, caplog, *ids):
    files = [path for path in stores.settings.root.rglob("*") if path.is_file() and path.name != "secrets.key"]
    answers = [client.get(f"/jobs/{one}{what}").content for one in ids for what in ("", "/events")]
    return [path.read_bytes() for path in files] + answers + [caplog.text.encode()]


def test_the_password_of_a_git_address_is_kept_encrypted_alone(client, stores, caplog):
    caplog.set_level("DEBUG")
    made = client.post("/jobs", json=make_job_body(workspace=ADDRESS), headers={"Idempotency-Key": "k"})
    again = client.post("/jobs", json=make_job_body(workspace=ADDRESS), headers={"Idempotency-Key": "k"})
    cloned = client.post(f"/jobs/{made.json()['id']}/clone")
    ids = made.json()["id"], cloned.json()["id"]
    assert again.json()["id"] == ids[0]
    assert made.json()["workspace"] == "https://git.example/repo.git#main"
    assert [login_of(stores, one) for one in ids] == [f"me:{PASSWORD}"] * 2
    kept = [*everything_kept(stores, client, caplog, *ids), made.content, cloned.content]
    assert not any(PASSWORD.encode() in one for one in kept)


def test_the_password_goes_with_the_job(client, stores):
    job_id = client.post("/jobs", json=make_job_body(workspace=ADDRESS)).json()["id"]
    cloned = client.post(f"/jobs/{job_id}/clone").json()["id"]
    client.delete(f"/jobs/{job_id}")
    with stores.database.read() as session:
        assert [one.job_id for one in session.query(GitLogin)] == [cloned]
