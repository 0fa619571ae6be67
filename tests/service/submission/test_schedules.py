"""Schedules over HTTP, by a clock that the tests set: their jobs, misses, overlaps, refusals, and what they keep."""

import io
import os
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta

import pytest
from sqlalchemy import func, select, update
from support.live_service import make_form, make_job_body, make_zip
from support.retention_jobs import RetentionJobs

from core.catalogue.machine_types import Catalogue
from core.db.database import Database
from core.db.models.jobs import Job
from core.db.models.schedules import Schedule
from core.jobs import lifecycle, queries
from core.security import api_keys, credentials
from core.security.encryption import Vault
from core.settings.limits import RetentionSettings
from core.storage.prune import prune
from core.storage.workspaces.limits import WorkspaceLimits
from service.main import create_app
from service.schemas.schedules import SubmitSchedule
from service.submission.schedules import create, run_due
from service.submission.stages import RequestOrigin

DAY = timedelta(days=1)


@pytest.fixture
def schedule(client):
    """A function that creates a schedule for each day at three."""

    def create(headers=None, **fields):
        body = make_job_body(cron="0 3 * * *", name="nightly") | fields
        answer = client.post("/schedules", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return answer.json()

    return create


def first_time(made):
    return datetime.fromisoformat(made["nextTimes"][0])


def show(client, made):
    return client.get(f"/schedules/{made['id']}").json()


def jobs_of(client, made):
    """The jobs of a schedule, oldest first."""
    return client.get("/jobs", params={"q": f"schedule:{made['id']}"}).json()["jobs"][::-1]


def test_each_time_has_one_job_with_the_workspace_and_its_time(client, stores):
    body = make_job_body(
        cron="30 2 * * *", timezone="Europe/Berlin", envVars={"LR": "0.1", "API_KEY": "hidden"}, project="night"
    )
    made = client.post("/schedules", files=make_form(body, make_zip())).json()
    assert (made["name"], made["cron"], made["timezone"]) == ("schedule 1", "30 2 * * *", "Europe/Berlin")
    assert (made["onMiss"], made["onOverlap"], made["suspended"], made["project"]) == ("once", "queue", False, "night")
    assert made["envVars"] == {"LR": "0.1", "API_KEY": "••••••"}
    assert (made["lastJob"], len(made["nextTimes"])) == (None, 5)
    assert client.get("/schedules").json() == {"schedules": [made], "next": None}
    due = first_time(made)
    assert run_due(stores, due - timedelta(seconds=1)) == 0
    assert [run_due(stores, due + timedelta(seconds=3)) for _ in range(3)] == [1, 0, 0]
    [job] = jobs_of(client, made)
    assert (job["scheduleId"], job["project"], job["workspaceSha256"]) == (made["id"], "night", made["workspaceSha256"])
    assert job["envVars"] == {"LR": "0.1", "API_KEY": "••••••", "SCHEDULED_AT": made["nextTimes"][0]}
    assert job["params"] == {"LR": 0.1}, "its time is none"
    assert show(client, made)["lastJob"]["id"] == job["id"]
    assert client.post(f"/jobs/{job['id']}/clone").json()["scheduleId"] is None
    assert client.delete(f"/schedules/{made['id']}").status_code == 204
    assert client.get(f"/schedules/{made['id']}").json()["error"]["name"] == "ScheduleNotFound"
    assert run_due(stores, due + 9 * DAY) == 0
    assert client.get(f"/jobs/{job['id']}").json()["scheduleId"] == made["id"]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"cron": "0 3 * *"}, (400, "cron")),
        ({"timezone": "Europe/Nowhere"}, (400, "timezone")),
        ({"onMiss": "never"}, (422, "onMiss")),
        ({"onOverlap": "never"}, (422, "onOverlap")),
        ({"after": ["j123"]}, (400, "after")),
        ({"array": "0-2"}, (400, "array")),
        ({"inputs": ["j123:in"]}, (400, "after")),
        ({"registryUsername": "u", "registryPassword": "p"}, (400, "registryUsername")),
        ({"machineType": "nosuch"}, (400, "machineType")),
        ({"envVars": {"A": "secret:NONE"}}, (400, "envVars.A")),
        ({"workspaceSha256": "0" * 64}, (404, "workspaceSha256")),
        ({"nosuch": 1}, (422, "nosuch")),
    ],
)
def test_what_could_not_be_a_job_is_no_schedule(client, fields, expected):
    answer = client.post("/schedules", json=make_job_body(cron="0 3 * * *") | fields)
    assert (answer.status_code, answer.json()["error"]["field"]) == expected, answer.text
    assert client.get("/schedules").json()["schedules"] == []


def test_a_repeated_request_makes_one_schedule(client):
    def send(**fields):
        body = make_job_body(cron="0 3 * * *") | fields
        return client.post("/schedules", json=body, headers={"Idempotency-Key": "k"})

    first, again = send(), send()
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert send(cron="0 4 * * *").status_code == 422


def test_pages_of_schedules(client, schedule):
    ids = [schedule()["id"] for _ in range(3)]
    page = client.get("/schedules", params={"limit": 2}).json()
    rest = client.get("/schedules", params={"limit": 2, "after": page["next"]}).json()
    assert [one["id"] for one in page["schedules"] + rest["schedules"]] == ids[::-1]
    assert rest["next"] is None


def test_suspended_resumed_and_triggered(client, stores, schedule):
    made = schedule()
    suspended = client.post(f"/schedules/{made['id']}/suspend").json()
    assert (suspended["suspended"], suspended["nextTimes"]) == (True, [])
    assert run_due(stores, first_time(made) + 3 * DAY) == 0
    job = client.post(f"/schedules/{made['id']}/trigger")
    assert (job.status_code, job.json()["scheduleId"]) == (201, made["id"])
    assert show(client, made)["suspended"]
    resumed = client.post(f"/schedules/{made['id']}/resume").json()
    assert resumed["nextTimes"] == made["nextTimes"], "what it was suspended over is not missed"
    assert len(jobs_of(client, made)) == 1


@pytest.mark.parametrize(("on_miss", "days"), [("skip", [3]), ("once", [0]), ("all", [0, 1, 2, 3])])
def test_times_at_which_nothing_ran(client, stores, schedule, on_miss, days):
    """Three times are missed, and the fourth has just come."""
    made = schedule(onMiss=on_miss)
    current = first_time(made) + 3 * DAY + timedelta(seconds=20)
    while run_due(stores, current):
        pass
    times = [datetime.fromisoformat(job["envVars"]["SCHEDULED_AT"]) for job in jobs_of(client, made)]
    assert times == [first_time(made) + day * DAY for day in days]
    assert run_due(stores, current + DAY) == 1


def test_a_miss_without_a_job_is_told(client, stores, schedule):
    made = schedule(onMiss="skip")
    assert run_due(stores, first_time(made) + timedelta(hours=1)) == 1
    shown = show(client, made)
    assert shown["refusal"] == f"Missed: from {made['nextTimes'][0]} on, no API was running to create a job."
    assert shown["refusedAt"] == made["nextTimes"][0]


def test_a_schedule_that_cannot_be_computed_costs_no_other_anything(client, stores, database, schedule):
    """Its time zone is no longer in the system's database: that is shown, and it is suspended at its next time."""
    gone, other = schedule(), schedule()
    with database.write() as session:
        session.execute(update(Schedule).where(Schedule.id == gone["id"]).values(timezone="Mars/Olympus"))
    fault = "'Mars/Olympus' is not a time zone."
    by_id = {one["id"]: one for one in client.get("/schedules").json()["schedules"]}
    assert (by_id[gone["id"]]["nextTimes"], by_id[gone["id"]]["suspended"]) == ([], False)
    assert fault in by_id[gone["id"]]["refusal"]
    assert by_id[other["id"]] == other
    assert client.get("/ui/schedules").text.count("unknown") == 1
    assert "<p>unknown</p>" in client.get(f"/ui/schedules/{gone['id']}").text
    assert run_due(stores, first_time(other)) == 2
    assert (len(jobs_of(client, gone)), len(jobs_of(client, other))) == (0, 1)
    shown = show(client, gone)
    assert (shown["suspended"], shown["refusal"][: len(fault) + 11]) == (True, f"Suspended: {fault}")
    assert client.post(f"/schedules/{gone['id']}/resume").json()["error"]["field"] == "timezone"


def test_overlaps(client, stores, schedule, worker):
    worker.register()
    made = {policy: schedule(onOverlap=policy) for policy in ("queue", "skip", "replace")}
    due = first_time(made["skip"])
    assert run_due(stores, due) == 3
    running = {job.id: job for job in (worker.start() for _ in made)}
    assert run_due(stores, due + DAY) == 3
    first, second = jobs_of(client, made["queue"])
    assert (second["after"], second["reason"]) == ([f"{first['id']}:ended"], "after_job")
    [only] = jobs_of(client, made["skip"])
    assert show(client, made["skip"])["refusal"] == f"Skipped: its job {only['id']} has not ended."
    assert client.post(f"/schedules/{made['skip']['id']}/trigger").json()["error"]["field"] == "onOverlap"
    replaced, following = jobs_of(client, made["replace"])
    assert (replaced["stopRequested"], following["after"]) == (True, [f"{replaced['id']}:ended"])
    for job in running.values():
        worker.end(job)
    assert run_due(stores, due + 2 * DAY) == 3
    assert (len(jobs_of(client, made["skip"])), show(client, made["skip"])["refusal"]) == (2, None)
    states = [job["state"] for job in jobs_of(client, made["replace"])]
    assert states == ["Stopped", "Cancelled", "Pending"], "a waiting one is cancelled"


def test_a_job_that_cannot_be_created_is_told_on_its_schedule(client, stores, database, schedule, add_key):
    assert client.put("/secrets/TOKEN", json={"value": "x"}).status_code == 201
    bob = add_key("bob")
    body = make_job_body(cron="0 3 * * *")
    made = {
        "No secret named 'TOKEN'": schedule(envVars={"A": "secret:TOKEN"}),
        "no longer stored": client.post("/schedules", files=make_form(body, make_zip())).json(),
        f"The API key {bob[0]}": schedule(headers=bob[1]),
        "machine type": schedule(machineType="V100"),
        "Limit reached: 1 queued jobs": schedule(),
    }
    assert stores.workspaces.discard(made["no longer stored"]["workspaceSha256"], unused_since=time.time() + 1)
    with database.write() as session:
        credentials.delete_secret(session, credentials.ALL_PROJECTS, "TOKEN")
        api_keys.revoke(session, bob[0])
    stores.catalogue = Catalogue([one for one in stores.catalogue if one.name != "V100"])
    stores.settings.limits.queued_per_key = 1
    client.post("/jobs", json=make_job_body())
    due = first_time(schedule())
    assert run_due(stores, due) == len(made) + 1
    for why, one in made.items():
        shown = show(client, one)
        assert why in (shown["refusal"] or ""), why
        assert (shown["lastJob"], shown["refusedAt"]) == (None, one["nextTimes"][0])
    stores.settings.limits.queued_per_key = 100
    assert run_due(stores, due + DAY) == len(made) + 1
    assert show(client, made["Limit reached: 1 queued jobs"])["refusal"] is None


def test_nothing_that_a_schedule_needs_is_removed(client, stores, tmp_path, database):
    """Neither its workspace, whatever becomes of its jobs, nor the artifacts of its inputs."""
    stores.settings.retention = RetentionSettings(logs_days=30, artifacts_days=30, workspaces_days=30)
    archived = {
        name: stores.workspaces.add(io.BytesIO(make_zip({name: b""})), WorkspaceLimits()).sha256 for name in "ab"
    }
    done = RetentionJobs(stores, tmp_path / "left").create_job(31, files=["model"], workspace_sha256=archived["b"])
    body = make_job_body(cron="0 3 * * *", workspaceSha256=archived["a"], inputs=[f"{done.id}:in"])
    made = client.post("/schedules", json=body).json()
    assert run_due(stores, first_time(made)) == 1
    [job] = jobs_of(client, made)
    with database.write() as session:
        lifecycle.request_stop(session, job["id"])
        lifecycle.delete(session, job["id"])
    for sha256 in archived.values():
        os.utime(stores.workspaces.path(sha256), (0, 0))
    prune(stores)
    assert [stores.workspaces.has(sha256) for sha256 in archived.values()] == [True, False]
    assert run_due(stores, first_time(made) + DAY) == 1
    assert show(client, made)["refusal"] is None
    client.delete(f"/schedules/{made['id']}")
    prune(stores)
    with database.read() as session:
        assert queries.get(session, done.id).artifacts_removed_at is not None


def test_a_login_for_git_is_kept_encrypted_and_given_to_each_job(client, stores, schedule, database):
    made = schedule(workspace="https://me:pa55@git.example/repo.git")
    assert "pa55" not in client.get("/schedules").text
    with database.write() as session:
        assert credentials.reencrypt_all(session, Vault(stores.settings)) == (1, [])
    assert run_due(stores, first_time(made)) == 1
    [job] = jobs_of(client, made)
    with database.read() as session:
        assert credentials.git_login(session, Vault(stores.settings), queries.get(session, job["id"])) == "me:pa55"


def test_a_project_with_schedules_is_not_deleted(client, schedule):
    made = schedule(project="night")
    answer = client.delete(f"/projects/{made['projectId']}")
    assert (answer.status_code, "schedules" in answer.json()["error"]["message"]) == (400, True)
    client.delete(f"/schedules/{made['id']}")
    assert client.delete(f"/projects/{made['projectId']}").status_code == 204


@pytest.fixture
def two_services(request, kind, tmp_path, common_settings):
    """The states of two services over one database, as of two processes."""
    if kind == "sqlite":
        url = f"sqlite:///{shutil.copy(request.getfixturevalue('migrated_sqlite'), tmp_path / 'gradient.db')}"
    else:
        url = request.getfixturevalue("postgres").new_database(request.getfixturevalue("migrated_postgres"))
    settings = common_settings.model_copy(update={"home": tmp_path / "home"}, deep=True)
    databases = [Database(url) for _ in range(2)]
    yield [create_app(settings, database=one, wake=lambda: None).state.app_state for one in databases]
    for one in databases:
        one.close()


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_two_processes_at_once_make_one_job_for_each_time(two_services):
    """Both try each time of each schedule, at the same moment."""
    with two_services[0].database.write() as session:
        origin = RequestOrigin(api_keys.create(session, "tests")[0].id, "r", None)
    for _ in range(5):
        body = SubmitSchedule.model_validate(make_job_body(cron="*/5 * * * *", onMiss="all"))
        create(two_services[0], origin, body, None)
    with two_services[0].database.read() as session:
        first = session.scalar(select(func.min(Schedule.next_at)))
    last, barrier = first + timedelta(minutes=35), threading.Barrier(2)

    def run(app_state):
        barrier.wait()
        while run_due(app_state, last) or run_due(app_state, last):  # the first may have lost all of them to the other
            pass

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, two_services))
    with two_services[0].database.read() as session:
        times = session.execute(select(Job.schedule_id, Job.spec_json["env_vars"]["SCHEDULED_AT"].as_string())).all()
    assert (len(times), len(set(times))) == (5 * 8, 5 * 8)
