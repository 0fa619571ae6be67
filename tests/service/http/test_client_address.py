"""Addresses of git in jobs: other schemes are refused at once; passwords in them are kept apart."""

import pytest
from support.live_service import make_job_body

from core.db.models.credentials import GitLogin
from core.jobs import queries
from core.security import credentials
from core.security.encryption import Vault

PASSWORD = "PW-CANARY-77"
ADDRESS = f"https://me:{PASSWORD}@git.example/repo.git#main"


def refusal(answer):
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["field"]


@pytest.mark.parametrize(
    "address",
    [
        *(f"{scheme}://github.com/repo.git" for scheme in ("ssh", "git", "file", "ext")),
        *("https://h:many/r", "https://h:99999/r", "https://[h/r", "https:///r", "https://h\\@g/r", "https://h/a b"),
        "https://h/\n",
    ],
)
def test_what_is_no_address_over_http_is_refused(client, address):
    assert refusal(client.post("/jobs", json=make_job_body(workspace=address))) == "workspace"


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
