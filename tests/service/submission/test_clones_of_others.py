"""A clone of another key's job gets none of its hidden values, by any way, and says which it goes without."""

import pytest
from support.live_service import make_job_body

from core.jobs import queries
from core.security import credentials
from core.security.encryption import Vault
from service.auth.session_cookie import cookie_name

HIDDEN = {"WANDB_API_KEY": "alices-wandb-key", "JUPYTER_TOKEN": "alices-jupyter-token", "DB_URL": "postgres://a:b@c"}
REPOSITORY = "https://git.example/private.git"


@pytest.fixture
def alices(client):
    """Id of a job with hidden values."""
    return client.post("/jobs", json=make_job_body(envVars=HIDDEN | {"LR": "0.1"})).json()["id"]


@pytest.fixture
def job_environment(stores):
    """A function that returns the environment that a job's command gets, and its login for the git server."""

    def read(job_id):
        with stores.database.read() as session:
            job, vault = queries.get(session, job_id), Vault(stores.settings)
            return credentials.resolve_env(session, vault, job), credentials.git_login(session, vault, job)

    return read


def clone(client, headers, job_id, **changes):
    answer = client.post(f"/jobs/{job_id}/clone", headers=headers, json={"command": "env"} | changes)
    assert answer.status_code == 201, answer.text
    return answer.json()


def test_a_clone_by_another_gets_no_hidden_value_and_names_each(client, bob, alices, job_environment):
    made = clone(client, bob[1], alices, envVars={"DB_URL": "bobs"})
    assert job_environment(made["id"])[0] == {"LR": "0.1", "DB_URL": "bobs"}
    [note] = made["notes"]
    assert "the hidden values of WANDB_API_KEY, JUPYTER_TOKEN." in note
    assert f"jobs clone {alices} --envVars WANDB_API_KEY=VALUE --envVars JUPYTER_TOKEN=VALUE" in note
    assert client.get(f"/jobs/{made['id']}", headers=bob[1]).json()["notes"] == [note]
    events = client.get(f"/jobs/{made['id']}/events", headers=bob[1]).json()["events"]
    assert note in [one["message"] for one in events]
    again = clone(client, bob[1], made["id"])
    assert job_environment(again["id"])[0] == {"LR": "0.1", "DB_URL": "bobs"}


def test_the_protocol_of_the_original_clients_gives_none_either(client, bob, alices, job_environment):
    made = client.post(f"/jobs/{alices}/clone", headers=bob[1] | {"ps_client_name": "gradient-cli"})
    assert made.status_code in {200, 201}, made.text
    assert job_environment(made.json()["id"])[0] == {"LR": "0.1"}
    page = client.get(f"/ui/jobs/{made.json()['id']}", headers=bob[1] | {"Accept": "text/html"})
    assert "the hidden values of WANDB_API_KEY" in page.text


@pytest.fixture
def submit_form(live_server, anonymous_client, stores, bob):
    """A function that sends the form of a clone in bob's browser, and returns the headers of that and the answer."""

    def send(job_id, **fields):
        browser = {
            "Cookie": f"{cookie_name(stores.settings)}={stores.sessions.open(bob[0])}",
            "Accept": "text/html",
            "Origin": live_server.url,
        }
        fields = {"machineType": "CPU", "command": "env", "from": job_id, "action": "submit"} | fields
        files = [(name, (None, value)) for name, value in fields.items()]
        return browser, anonymous_client.post("/ui/jobs/new", headers=browser, files=files)

    return send


def test_the_form_of_a_clone_gives_none_and_names_each(anonymous_client, submit_form, alices, job_environment):
    variables = "WANDB_API_KEY=\u2022\u2022\u2022\u2022\u2022\u2022\nLR=0.1"
    browser, made = submit_form(alices, envVars=variables)
    shown = anonymous_client.get("/ui/jobs/new", params={"from": alices}, headers=browser)
    assert "Left out because job" in shown.text
    assert "WANDB_API_KEY=\u2022" not in shown.text
    assert made.status_code == 303, made.text
    environment, _ = job_environment(made.headers["location"].rpartition("/")[2])
    assert not set(HIDDEN.values()) & set(environment.values())
    page = anonymous_client.get(made.headers["location"], headers=browser)
    assert "the hidden values of" in page.text


def test_receivers_of_notifications_stay_with_their_owner(client, bob):
    client.put("/notifications/team", json={"url": "https://example.org"})
    job_id = client.post("/jobs", json=make_job_body(notify=["team:job.failed"])).json()["id"]
    assert client.post(f"/jobs/{job_id}/clone").json()["notify"] == ["team:job.failed"]
    made = clone(client, bob[1], job_id)
    assert made["notify"] == []
    assert "its receivers of notifications (team:job.failed)" in " ".join(made["notes"])


@pytest.mark.parametrize("way", ["clone", "form"])
def test_the_login_for_a_git_server_stays_with_its_owner(client, submit_form, bob, job_environment, way):
    with_login = REPOSITORY.replace("://", "://alice:git-password@")
    private = client.post("/jobs", json=make_job_body(workspace=with_login)).json()["id"]
    assert job_environment(private)[1] == "alice:git-password"
    if way == "clone":
        made = clone(client, bob[1], private)
        assert "its login for the git server" in made["notes"][0]
        made_id = made["id"]
    else:
        _, answer = submit_form(private, source="git", workspace=REPOSITORY)
        assert answer.status_code == 303, answer.text
        made_id = answer.headers["location"].rpartition("/")[2]
    assert job_environment(made_id)[1] is None
    assert job_environment(clone(client, None, private)["id"])[1] == "alice:git-password"


def test_no_answer_has_a_hidden_value_and_none_tells_whether_a_guess_is_right(client, bob, alices):
    guess = client.post(
        "/jobs", headers=bob[1], json=make_job_body(envVars=HIDDEN | {"LR": "0.1", "DB_URL": "wrong"})
    ).json()["id"]
    compared = client.post("/comparisons/from-jobs", headers=bob[1], json={"jobs": [alices, guess]}).json()["id"]
    copy = clone(client, bob[1], alices)["id"]
    answers = [
        client.get(path, headers=bob[1] | headers)
        for path in (
            f"/jobs/{alices}", "/jobs", f"/jobs/{alices}/events", f"/jobs/{alices}/diff?other={guess}",
            f"/jobs/{copy}", f"/comparisons/{compared}", f"/jobs/getJob?jobId={alices}", "/jobs?q=alices-wandb-key",
            f"/ui/jobs/{alices}", f"/ui/jobs/{alices}/config", f"/ui/jobs/{alices}/events",
            f"/ui/comparisons/{compared}",
        )
        for headers in ({}, {"Accept": "text/html"}, {"Accept": "text/csv"})
    ]  # fmt: skip
    for answer in answers:
        assert answer.status_code == 200, answer.text
        for value in HIDDEN.values():
            assert value not in answer.text.replace("q=alices-wandb-key", ""), answer.url
    found = client.get(f"/comparisons/{compared}", headers=bob[1]).json()
    assert [one["name"] for one in found["differences"] if one["name"].startswith("envVars.")] == []
