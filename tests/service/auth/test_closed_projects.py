"""Closed projects: what their members may, and what others can neither see, guess nor be told of."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import product

import pytest
from sqlalchemy import insert, select, update
from support.live_service import make_form, make_job_body, make_zip

from core.db import migrations
from core.db.database import Database, now
from core.db.models.changes import Change
from core.db.models.jobs import GpuAllocation, Job, Worker
from core.security import api_keys, identities, users
from core.security.encryption import Vault
from core.settings import Settings
from core.settings.api import OidcSettings
from service.main import _flush_key_usage
from service.notifications import sender
from service.submission.schedules import run_due

FILES = {"main.py": b"print('red')\n"}
JSON = {"content-type": "application/json"}


@pytest.fixture
def red(client):
    """The address of a closed project of the key of `client`, and the id of a job in it."""
    job = client.post("/jobs", json=make_job_body(project="red")).json()
    project = f"/projects/{job['projectId']}"
    assert client.patch(project, json={"closed": True}).json()["closed"]
    return project, job["id"]


@pytest.fixture
def join(client, red):
    """A function that gives a member of the closed project a role."""

    def join(member, role):
        answer = client.put(f"{red[0]}/members/{member}", json={"role": role})
        assert answer.status_code == 200, answer.text
        return answer.json()

    return join


def error(answer):
    return answer.status_code, answer.json()["error"]["name"], answer.json()["error"]["message"]


def test_the_name_of_a_closed_project_is_taken_for_others_and_tells_no_more(client, bob, red):
    spec = make_job_body(project="red")
    asked = [("/jobs", spec), ("/jobs?dryRun=true", spec), ("/projects", {"name": "red"})]
    asked += [
        ("/schedules", {**spec, "cron": "0 3 * * *"}),
        ("/sweeps", {**spec, "space": {"a": "1,2"}, "method": "grid"}),
    ]
    for path, body in asked:
        assert error(client.post(path, json=body, headers=bob[1]))[:2] == (400, "SpecInvalid"), path
    assert client.get("/jobs?project=red", headers=bob[1]).json()["jobs"] == []
    assert client.get(red[0]).json()["jobCount"] == 1


def test_a_user_is_a_member_with_all_keys_until_it_is_deleted(client, database, add_key, join, red):
    with database.write() as session:
        ann = users.create(session, "ann@example.org", "0123456789").id
    _, laptop = add_key("laptop", ann)
    assert client.get(f"/jobs/{red[1]}", headers=laptop).status_code == 404
    assert join("ann@example.org", "submitter") == {"id": ann, "name": "ann@example.org", "role": "submitter"}
    _, desktop = add_key("desktop", ann)
    for headers in (laptop, desktop):
        assert client.get(f"/jobs/{red[1]}", headers=headers).status_code == 200
        assert client.get("/keys/self", headers=headers).json()["roles"] == {"red": "submitter"}
    with database.write() as session:
        users.remove(session, "ann@example.org")
    assert [member["role"] for member in client.get(f"{red[0]}/members").json()["members"]] == ["maintainer"]


def test_a_closed_project_keeps_a_maintainer_and_opens_again(client, api_key, bob, join, red):
    me = f"{red[0]}/members/{api_key.split('_')[1]}"
    for answer in (client.delete(me), client.put(me, json={"role": "viewer"})):
        assert error(answer)[:2] == (400, "SpecInvalid")
    join(bob[0], "maintainer")
    assert client.delete(me, headers=bob[1]).status_code == 204
    assert error(client.patch(red[0], json={"closed": False}))[0] == 404
    assert client.patch(red[0], json={"closed": False}, headers=bob[1]).json()["closed"] is False
    assert client.get(f"/jobs/{red[1]}").status_code == 200
    bad = client.put(f"{red[0]}/members/{bob[0]}", json={"role": "owner"}, headers=bob[1])
    assert bad.status_code == 422
    for unknown in ("nobody@example.org", "k0000000"):
        assert client.put(f"{red[0]}/members/{unknown}", json={"role": "viewer"}, headers=bob[1]).status_code == 404


def test_a_workspace_of_others_is_neither_confirmed_nor_used_until_it_is_sent(client, bob, join, stores):
    archive = make_zip(FILES)
    sent = client.post("/jobs", files=make_form(make_job_body(project="red"), archive)).json()
    digest, headers = sent["workspaceSha256"], bob[1]
    for sha256 in (digest, "0" * 64):
        asked = [
            client.get(f"/workspaces/{sha256}", headers=headers),
            client.post("/jobs", json=make_job_body(workspaceSha256=sha256), headers=headers),
            client.post("/jobs?dryRun=true", json=make_job_body(workspaceSha256=sha256), headers=headers),
        ]
        assert [error(answer)[:2] for answer in asked] == [(404, "WorkspaceNotFound")] * 3
    manifest = stores.workspaces.path(digest).read_bytes()
    stored = client.put(f"/workspaces/{digest}", content=manifest, headers=headers | JSON)
    assert "are not stored here" in stored.text, "a manifest alone proves nothing"
    again = client.post("/jobs", files=make_form(make_job_body(), archive), headers=headers).json()
    assert again["workspaceSha256"] == digest
    assert client.get(f"/workspaces/{digest}", headers=headers).status_code == 200
    join(bob[0], "viewer")
    assert client.get(f"/workspaces/{digest}", headers=headers).status_code == 200


@pytest.mark.parametrize("role", [None, "viewer", "submitter"])
def test_a_schedule_goes_on_with_the_rights_of_its_key(client, bob, join, red, stores, role):
    join(bob[0], "submitter")
    spec = make_job_body(project="red", cron="* * * * *")
    schedule = client.post("/schedules", json=spec, headers=bob[1]).json()["id"]
    if role is None:
        client.delete(f"{red[0]}/members/{bob[0]}")
    else:
        join(bob[0], role)
    assert run_due(stores, datetime(2100, 1, 1, tzinfo=UTC)) == 1
    shown = client.get(f"/schedules/{schedule}").json()
    says = {None: "No such project", "viewer": "may only read project red", "submitter": None}[role]
    assert (shown["lastJob"] is None) == bool(says)
    assert says is None or says in shown["refusal"]


def test_a_receiver_is_told_of_no_job_that_its_owner_does_not_see(client, bob, join, stores, worker):
    saved = client.put("/notifications/bobs", json={"url": "https://192.0.9.1/h", "jobs": ["all"]}, headers=bob[1])
    assert saved.status_code == 201, saved.text
    mine = client.put("/notifications/mine", json={"url": "https://192.0.9.1/h", "jobs": ["project:red"]})
    assert mine.json()["jobs"] == ["project:red"]
    worker.register()
    worker.end(worker.start())
    sender.collect(stores)

    def told(name, headers=None):
        return [
            one["summary"]
            for one in client.get(f"/notifications/{name}/deliveries", headers=headers).json()["deliveries"]
        ]

    assert (len(told("mine")), told("mine", bob[1]), told("bobs")) == (1, [], [])
    assert client.get("/notifications/mine", headers=bob[1]).json()["jobs"] == []
    join(bob[0], "viewer")
    client.post("/jobs", json=make_job_body(project="red"))
    worker.end(worker.start())
    sender.collect(stores)
    assert (len(told("mine", bob[1])), len(told("bobs"))) == (2, 1)


def test_jobs_of_others_are_counts_on_machines_and_in_the_queue(client, bob, database, red):
    with database.write() as session:
        values = {"host": "h", "boot_id": "b", "backends": ["process"], "slots": 1, "gpus": ["0"]}
        session.execute(insert(Worker).values(name="w", started_at=now(), seen_at=now(), **values))
        held = {"state": "running", "worker": "w", "host": "h", "started_at": now(), "attempt": 1}
        session.execute(update(Job).where(Job.id == red[1]).values(**held))
        session.add(GpuAllocation(host="h", gpu="0", job_id=red[1], attempt=1))
    client.post("/jobs", json=make_job_body(project="red", priority=100))
    bobs = client.post("/jobs", json=make_job_body(project="bobs"), headers=bob[1]).json()
    assert client.get(f"/jobs/{bobs['id']}", headers=bob[1]).json()["queuePosition"] == 2
    [shown] = client.get("/workers", headers=bob[1]).json()["workers"]
    [gpu] = shown["gpus"]
    assert (shown["jobIds"], shown["otherJobs"], gpu["jobId"]) == ([], 1, None)
    assert gpu["takenBy"] == "a job that you do not see"
    page = client.get("/ui/machines", headers=bob[1]).text
    assert ("1 of 1" in page, red[1] in page, "a job that you do not see" in page) == (True, False, True)
    assert client.get("/ui", headers=bob[1]).text.count("1 of 1") == 1
    [mine] = client.get("/workers").json()["workers"]
    assert (mine["jobIds"], mine["otherJobs"], mine["gpus"][0]["jobId"]) == ([red[1]], 0, red[1])


def test_a_job_waits_for_no_hidden_one_and_ends_with_one_that_it_no_longer_sees(client, bob, join, red):
    for option in ({"after": [red[1]]}, {"inputs": [f"{red[1]}:x"]}):
        hidden = error(client.post("/jobs", json=make_job_body(**option), headers=bob[1]))
        made_up = json.loads(json.dumps(option).replace(red[1], "j0000000000000"))
        other = error(client.post("/jobs", json=make_job_body(**made_up), headers=bob[1]))
        assert (hidden[0], hidden[2].replace(red[1], "ID")) == (other[0], other[2].replace("j0000000000000", "ID"))
    join(bob[0], "viewer")
    waiting = [
        client.post("/jobs", json=make_job_body(project="bobs", after=[after]), headers=bob[1]).json()["id"]
        for after in (red[1], f"{red[1]}:ended")
    ]
    client.delete(f"{red[0]}/members/{bob[0]}")
    assert client.post(f"/jobs/{red[1]}/stop").status_code == 200
    shown = [client.get(f"/jobs/{job_id}", headers=bob[1]).json() for job_id in waiting]
    assert {(job["state"], job["reason"]) for job in shown} == {("Cancelled", "access_lost")}
    assert all(UNSEEN in job["message"] and red[1] not in job["message"] for job in shown), "not how it ended"


def test_the_page_of_a_project_shows_its_members(client, bob, join):
    join(bob[0], "viewer")
    page = client.get("/ui/jobs?q=project:red&charts=1", headers=bob[1]).text
    members = page.partition('<dd id="members">')[2].partition("</dd>")[0]
    assert [name in members for name in ("tests", "maintainer", "bob", "viewer")] == [True] * 4
    assert "gradient-cli projects update red --open" in page


GONE = "was revoked or has expired"
UNSEEN = "may no longer see a job that it names"
BARRED = "may no longer submit to its project"
OWN = {"own", "retry"}  # jobs in the closed project itself
LOSSES = {"removed": BARRED, "demoted": BARRED, "key revoked": GONE, "user deleted": GONE, "nothing": None}


@pytest.fixture
def ann(database, add_key, join):
    """The id and the headers of a key of a user who is a submitter of the closed project."""
    with database.write() as session:
        user = users.create(session, "ann@example.org", "0123456789").id
    join("ann@example.org", "submitter")
    return add_key("laptop", user)


@pytest.fixture
def lose(client, database, ann, join, red):
    def lose(loss):
        """Take a right away from `ann`."""
        if loss == "removed":
            assert client.delete(f"{red[0]}/members/ann@example.org").status_code == 204
        elif loss == "demoted":
            join("ann@example.org", "viewer")
        elif loss != "nothing":
            with database.write() as session:
                api_keys.revoke(session, ann[0]) if loss == "key revoked" else users.remove(session, "ann@example.org")

    return lose


@pytest.mark.parametrize("case", list(product(["own", "retry", "inputs", "after", "array"], LOSSES)), ids="-".join)
def test_no_attempt_begins_once_its_owner_has_lost_what_it_needs(stores, client, worker, ann, lose, red, case):
    kind, loss = case
    worker.register()
    worker.end(worker.start())
    named = {"after": [red[1]]} if kind == "after" else {"inputs": [f"{red[1]}:in"]}
    options = {"project": "red", "maxAttempts": 2} if kind in OWN else {"project": "anns", **named}
    options |= {"array": "0-1"} if kind == "array" else {}
    made = client.post("/jobs", json=make_job_body(priority=100, **options), headers=ann[1])
    assert made.status_code == 201, made.text
    job_id = made.json()["id"]
    if kind == "retry":
        assert worker.end(worker.start(), "exit_nonzero", exit_code=1).state == "queued"
        with stores.database.write() as session:
            session.execute(update(Job).where(Job.id == job_id).values(run_after=None))
    other = client.post("/jobs", json=make_job_body(project="others")).json()["id"]
    lose(loss)
    says = LOSSES[loss] if kind in OWN else None if loss == "demoted" else LOSSES[loss] and UNSEEN
    assert worker.claim().id == (other if says else job_id)
    job = worker.get(job_id)
    assert (job.state, job.reason) == (("cancelled", "access_lost") if says else ("starting", None))
    assert not says or says in job.reason_detail
    ended = [job for job in client.get("/jobs").json()["jobs"] if job["reason"] == "access_lost"]
    assert len(ended) == (0 if not says else 2 if kind == "array" else 1), "of an array all end"


def test_administrators_need_no_role_for_their_jobs_to_start(client, settings, stores, worker, bob, red):
    settings.sign_in.administrators = [bob[0]]
    _flush_key_usage(stores)
    worker.register()
    made = client.post("/jobs", json=make_job_body(project="red", priority=100), headers=bob[1]).json()["id"]
    assert worker.claim().id == made
    client.post("/jobs", json=make_job_body(project="red", priority=100), headers=bob[1])
    settings.sign_in.administrators = []
    _flush_key_usage(stores)
    assert worker.claim().id == red[1]


@pytest.mark.parametrize(("closer", "count"), [("owner", 1), ("administrator", 2)])
def test_closing_a_project_is_recorded_once_for_each_new_maintainer(client, settings, bob, database, closer, count):
    project = client.post("/projects", json={"name": "blue"}, headers=bob[1]).json()["id"]
    settings.sign_in.administrators = [client.get("/keys/self").json()["id"]]
    headers = bob[1] if closer == "owner" else None
    assert client.patch(f"/projects/{project}", json={"closed": True}, headers=headers).status_code == 200
    with database.read() as session:
        set_in_project = Change.target.startswith("blue: "), Change.kind == "member_set"
        assert len(session.scalars(select(Change).where(*set_in_project)).all()) == count


def test_many_first_sign_ins_of_one_person_make_one_user(postgres, tmp_path):
    database = Database(postgres.new_database())
    migrations.upgrade(database)
    settings = Settings(home=tmp_path, oidc=OidcSettings(issuer="https://id.example", client_id="c"))
    account = identities.Account("https://id.example", "ann", "ann@example.org", frozenset(), {"access_token": "t"})
    ready = threading.Barrier(4)

    def sign_in(_):
        ready.wait()
        with database.write() as session:
            return identities.sign_in(session, Vault(settings), settings.oidc, account)

    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(sign_in, range(4)))) == 1
    database.close()
