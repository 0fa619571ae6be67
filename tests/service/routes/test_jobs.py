"""Jobs over HTTP: what comes back, and what is there afterwards."""

import json
import re

import pytest
from sqlalchemy import update
from support.live_service import OFFER, LiveServer, count_jobs, make_job_body

from core.db.database import now
from core.db.models.jobs import Worker
from core.errors import StoreUnavailable
from core.jobs import lifecycle
from core.jobs.guarded_updates import update_attempt
from core.jobs.scheduling import workers
from core.jobs.states import JobState
from service.main import create_app
from service.presenters.jobs import PUBLIC_STATES, STATE_WORDS


def test_a_job_is_made_and_shown(client, wake_calls):
    answer = client.post(
        "/jobs", json=make_job_body(name="first", envVars={"API_KEY": "s3cret", "LR": "0.1"}, tags=["a"])
    )
    assert answer.status_code == 201
    job = answer.json()
    assert re.fullmatch(r"j[a-z0-9]{13}", job["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", job["createdAt"])
    expected = {
        "name": "first",
        "project": "default",
        "state": "Pending",
        "phase": "queued",
        "reason": "waiting_for_machine",
        "message": "Waiting for a free machine.",
        "exitCode": None,
        "machineType": "CPU",
        "backend": "process",
        "simulated": True,
        "command": "python main.py",
        "envVars": {"API_KEY": "••••••", "LR": "0.1"},
        "stopGrace": 60,
        "maxAttempts": 1,
        "priority": 50,
        "attempt": 0,
        "tags": ["a"],
        "parentJobId": None,
        "startedAt": None,
        "durationSeconds": None,
        "cost": 0.0,
        "queuePosition": None,
        "estimatedStartAt": None,
        "silentSince": None,
        "artifactsState": "none",
        "stopRequested": False,
        "url": f"http://127.0.0.1:8780/ui/jobs/{job['id']}",
    }
    assert {name: job[name] for name in expected} == expected
    # A submission is answered without a look at the queue; what is known of it follows.
    shown = client.get(f"/jobs/{job['id']}").json()
    assert {name for name in shown if shown[name] != job[name]} == {"owner", "reason", "message", "queuePosition"}
    assert (shown["reason"], shown["queuePosition"]) == ("no_worker", 1)
    assert wake_calls == ["wake"]


@pytest.mark.parametrize("options", [{}, {"projectId": True, "envVars": {"TOKEN": "secret:token"}}])
def test_a_submission_takes_at_most_two_database_sessions(client, database, monkeypatch, options):
    assert client.put("/secrets/token", json={"value": "x"}).is_success
    project = client.post("/projects", json={"name": "ours"}).json()["id"]
    asked = make_job_body(**options | ({"projectId": project} if options else {}))
    opened = []
    for kind in ("read", "write"):
        session = getattr(database, kind)
        monkeypatch.setattr(database, kind, lambda session=session, kind=kind: opened.append(kind) or session())
    assert client.post("/jobs", json=asked).status_code == 201
    assert opened == (["read", "write"] if options else ["write"])


def test_a_commit_that_fails_gives_503_and_no_201(client, database, monkeypatch):
    def fail(*_args):
        raise StoreUnavailable("The database does not answer right now. Try again in a moment.")

    project = client.post("/projects", json={"name": "there"}).json()
    monkeypatch.setattr("sqlalchemy.engine.default.DefaultDialect.do_commit", fail)
    for path, body in (("/jobs", make_job_body()), ("/projects", {"name": "new"})):
        answer = client.post(path, json=body)
        assert answer.status_code == 503
        assert answer.headers["retry-after"]
        assert answer.json()["error"]["name"] == "StoreUnavailable"
    monkeypatch.undo()
    assert count_jobs(database) == 0
    assert [one["id"] for one in client.get("/projects").json()["projects"]] == [project["id"]]


def test_wake_comes_after_the_commit_and_only_then(client, database, stores):
    seen = []
    object.__setattr__(stores, "wake", lambda: seen.append(count_jobs(database)))
    client.post("/jobs", json=make_job_body())
    assert seen == [1]
    client.post("/jobs", json=make_job_body(machineType="nothing"))
    assert seen == [1]


def test_states_seen_from_outside(client, worker):
    worker.register()
    ids = [client.post("/jobs", json=make_job_body(name=f"n{i}")).json()["id"] for i in range(5)]
    ends = (
        ("completed", {"exit_code": 0}),
        ("exit_nonzero", {"exit_code": 3, "detail": "exit code 3"}),
        ("launch_failed", {"detail": "no such shell"}),
    )
    for reason, fields in ends:
        worker.end(worker.start(), reason, **fields)
    worker.start()
    client.post(f"/jobs/{ids[4]}/stop")
    jobs = [client.get(f"/jobs/{one}").json() for one in ids]
    assert [job["state"] for job in jobs] == ["Stopped", "Failed", "Error", "Running", "Cancelled"]
    assert [job["exitCode"] for job in jobs] == [0, 3, None, None, None]
    assert "exit code 3" in jobs[1]["message"]
    assert jobs[2]["message"] == "The job could not be started: no such shell"
    assert jobs[0]["artifactsState"] == "complete"
    assert jobs[0]["durationSeconds"] >= 0
    assert jobs[3]["phase"] == "running"
    for state, job in zip([job["state"] for job in jobs], jobs, strict=True):
        found = client.get("/jobs", params={"state": state.upper()}).json()["jobs"]
        assert [one["id"] for one in found] == [job["id"]]
    both = client.get("/jobs", params={"state": "Failed, Running"}).json()["jobs"]
    assert [job["state"] for job in both] == ["Running", "Failed"]
    for name in ("stopped", "Succeeded"):
        every = client.get("/jobs", params={"state": f"failed,ERROR,{name}"}).json()["jobs"]
        assert {job["state"] for job in every} == {"Failed", "Error", "Stopped"}


def test_an_unknown_state_is_refused_with_those_there_are(client):
    answer = client.get("/jobs", params={"state": "Runing"})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["field"] == "state"
    assert all(word in error["message"] for word in STATE_WORDS.values())


def test_every_inside_state_has_an_outside_name():
    from_filters = set(PUBLIC_STATES)
    assert from_filters == {"Pending", "Running", "Kept", "Stopped", "Failed", "Error", "Cancelled"}
    assert len(JobState) == 8


def test_lists_narrow_by_project_machine_and_name(client):
    client.post("/jobs", json=make_job_body(project="a", name="one"))
    client.post("/jobs", json=make_job_body(project="b", name="two", machineType="v100"))
    project_id = client.get("/jobs", params={"project": "a"}).json()["jobs"][0]["projectId"]

    def names(**params):
        return [job["name"] for job in client.get("/jobs", params=params).json()["jobs"]]

    assert names(project="b") == ["two"]
    assert names(projectId=project_id) == ["one"]
    assert names(machineType="V100") == ["two"]
    assert names(name="one") == ["one"]
    assert names(project="nowhere") == []
    assert client.get("/jobs", params={"machineType": "V1000"}).status_code == 400


def test_an_unknown_filter_is_refused_instead_of_ignored(client):
    answer = client.get("/jobs", params={"stat": "Running"})
    assert answer.status_code == 422
    assert "'stat'" in answer.json()["error"]["message"]


def test_places_in_the_queue_go_by_priority_then_age(client, worker):
    worker.register()
    first, second = (client.post("/jobs", json=make_job_body()).json()["id"] for _ in range(2))
    urgent = client.post("/jobs", json=make_job_body(priority=90)).json()["id"]
    listed = {job["id"]: job for job in client.get("/jobs").json()["jobs"]}
    assert {one: listed[one]["queuePosition"] for one in listed} == {urgent: 1, first: 2, second: 3}
    assert listed[urgent]["reason"] == "waiting_for_machine"
    assert listed[second]["reason"] == "behind_jobs"
    assert listed[second]["message"] == "2 jobs ahead in the queue."
    alone = client.get(f"/jobs/{second}").json()
    assert (alone["queuePosition"], alone["message"]) == (3, listed[second]["message"])


def test_stop_is_a_request_while_it_runs_and_nothing_afterwards(client, worker, wake_calls):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    job = worker.start()
    stopped = client.post(f"/jobs/{job_id}/stop").json()
    assert (stopped["state"], stopped["stopRequested"]) == ("Running", True)
    assert len(wake_calls) == 2
    worker.end(job, "stopped_by_user", exit_code=143)
    again = client.post(f"/jobs/{job_id}/stop")
    assert (again.status_code, again.json()["state"]) == (200, "Cancelled")


def test_a_clone_is_made_once_per_idempotency_key(client, database):
    first = client.post("/jobs", json=make_job_body()).json()["id"]
    answers = [client.post(f"/jobs/{first}/clone", headers={"Idempotency-Key": "k"}) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert answers[0].json()["id"] == answers[1].json()["id"]
    assert count_jobs(database) == 2
    other = client.post("/jobs", json=make_job_body(), headers={"Idempotency-Key": "k"})
    assert other.json()["error"]["name"] == "IdempotencyMismatch"


def test_a_deleted_job_is_gone(client, worker, stores):
    worker.register()
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    worker.start()
    answer = client.delete(f"/jobs/{job_id}")
    assert (answer.status_code, answer.content) == (204, b"")
    for path in ("", "/logs", "/events", "/metrics", "/artifacts", "/artifacts.zip", "/logs/raw"):
        assert client.get(f"/jobs/{job_id}{path}").status_code == 404, path
    assert client.delete(f"/jobs/{job_id}").status_code == 404
    assert client.post(f"/jobs/{job_id}/stop").json()["error"]["name"] == "JobNotFound"
    assert client.get("/jobs").json()["jobs"] == []
    with stores.database.write() as session:
        heart = workers.heartbeat(session, OFFER, boot_id="b")[job_id]
    assert heart.stop_requested


def test_a_job_with_a_silent_worker_says_so(client, worker, database):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    worker.start()
    assert client.get(f"/jobs/{job_id}").json()["reason"] is None
    with database.write() as session:
        session.connection().exec_driver_sql("UPDATE jobs SET heartbeat_at = '2020-01-01 00:00:00.000000'")
    for job in (client.get(f"/jobs/{job_id}").json(), *client.get("/jobs").json()["jobs"]):
        assert (job["state"], job["reason"]) == ("Running", "worker_unresponsive")
        assert job["silentSince"] == "2020-01-01T00:00:00.000Z"
        assert "sent no heartbeat since 2020-01-01 00:00:00 UTC. The job may still be running." in job["message"]


def test_a_drained_worker_makes_no_machine_type_available(client, worker, database):
    worker.register()

    def available():
        return {one["name"]: one["available"] for one in client.get("/machine-types").json()["machineTypes"]}

    assert all(available().values())
    with database.write() as session:
        session.execute(update(Worker).values(drained_at=now(), machine_types=["CPU"]))
    assert not any(available().values())
    with database.write() as session:
        session.execute(update(Worker).values(drained_at=None))
    assert [name for name, there in available().items() if there] == ["CPU"]
    notes = client.post("/jobs", params={"dryRun": "true"}, json=make_job_body(machineType="V100")).json()["notes"]
    assert "No running worker offers this machine type now; the job would wait." in notes


def test_a_dry_run_makes_nothing(client, database, wake_calls):
    answer = client.post(
        "/jobs", params={"dryRun": "true"}, json=make_job_body(machineType="tpu", envVars={"PASSWORD": "p"})
    )
    assert answer.status_code == 200
    found = answer.json()
    assert found["job"]["machineType"] == "TPU"
    assert found["job"]["envVars"] == {"PASSWORD": "••••••"}
    assert found["job"]["project"] == "default"
    assert found["pricePerHour"] == found["machineType"]["pricePerHour"] > 0
    assert found["machineType"]["simulated"] is True
    assert any("Simulated" in note for note in found["notes"])
    assert count_jobs(database) == 0
    assert client.get("/projects").json()["projects"] == []
    assert wake_calls == []


@pytest.mark.parametrize("end", ["\r\n", "\r", "\r\n\r\n"])
def test_line_ends_of_windows_are_those_of_shells(client, end):
    asked = [make_job_body(command=f"cd src\r\npython3 'x y.py'{end}"), make_job_body(command=f"env{end}")]
    taken = [client.post("/jobs", json=body).json()["command"] for body in asked]
    assert [command.rstrip("\n") for command in taken] == ["cd src\npython3 'x y.py'", "env"]


@pytest.mark.parametrize(
    ("field", "value", "right"),
    [
        ("command", "echo a\rb", "within a line"),
        ("workingDir", "src\\train", "src/train"),
        ("outputs", ["**/*.log", "out\\*.pt"], "out/*.pt"),
        ("inputs", ["j1a2b3c4d5e6f7:in\\model"], "in/model"),
        ("requirementsFile", "requirements\\gpu.txt", "requirements/gpu.txt"),
    ],
)
def test_what_only_windows_understands_is_refused(client, field, value, right):
    refused = client.post("/jobs", json=make_job_body(**{field: value}))
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, field)
    assert right in refused.json()["error"]["message"]


def test_a_project_is_given_by_name_or_by_id(client):
    project = client.post("/projects", json={"name": "by id"})
    assert project.status_code == 201
    assert client.post("/projects", json={"name": "by id"}).status_code == 200
    project_id = project.json()["id"]
    assert re.fullmatch(r"pr[a-z0-9]{13}", project_id)
    job = client.post("/jobs", json=make_job_body(projectId=project_id)).json()
    assert (job["project"], job["projectId"]) == ("by id", project_id)
    assert client.get(f"/projects/{project_id}").json()["jobCount"] == 1
    both = client.post("/jobs", json=make_job_body(projectId=project_id, project="x"))
    assert (both.status_code, both.json()["error"]["field"]) == (400, "projectId")
    assert client.post("/jobs", json=make_job_body(projectId="prnone")).status_code == 404
    assert client.get("/projects/prnone").json()["error"]["name"] == "ProjectNotFound"


def test_without_simulation_each_machine_has_its_backend(settings, database, api_key):
    settings.machines.simulate = False
    live = LiveServer(create_app(settings, database=database, wake=lambda: None), api_key)
    with live.client() as client:
        job = client.post("/jobs", json=make_job_body(machineType="V100")).json()
        asked = {"user": "1000", "workingDir": "/opt/app", "sharedMemMb": 64}
        given = client.post("/jobs", json=make_job_body(machineType="V100", **asked)).json()
        assert {name: given[name] for name in asked} == asked
        refused = client.post("/jobs", json=make_job_body(machineType="V100", packages=["six"]))
        assert (refused.status_code, refused.json()["error"]["field"]) == (400, "packages")
        settings.machines.simulate = True
        clone = client.post(f"/jobs/{given['id']}/clone")
        assert (clone.status_code, clone.json()["error"]["field"]) == (400, "user"), "what it cannot have is said"
        settings.machines.simulate = False
    live.stop()
    assert (job["backend"], job["simulated"]) == ("docker", False)


@pytest.mark.parametrize(("asked", "field"), [({"user": "1000"}, "user"), ({"workingDir": "/opt/app"}, "workingDir")])
def test_what_a_simulated_machine_cannot_give_is_refused(client, database, asked, field):
    for params in ({}, {"dryRun": "true"}):
        answer = client.post("/jobs", params=params, json=make_job_body(**asked))
        error = answer.json()["error"]
        assert (answer.status_code, error["field"]) == (400, field)
        assert "Machine types are simulated on this server" in error["message"]
    assert count_jobs(database) == 0
    wrong = client.post("/jobs", json=make_job_body(python="pypy"))
    assert (wrong.status_code, wrong.json()["error"]["field"]) == (400, "python")
    assert client.post("/jobs", json=make_job_body(python="3.12")).json()["python"] == "3.12"
    taken = client.post("/jobs", json=make_job_body(workingDir="src", sharedMemMb=64)).json()
    assert (taken["workingDir"], taken["sharedMemMb"], taken["user"]) == ("src", 64, None)


def test_a_tpu_is_shown_once_it_is_known(client, database, worker):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    assert client.get(f"/jobs/{job_id}").json()["tpu"] is None
    job = worker.claim()
    tpu = {"zone": "us-central1-b", "name": "gj-1", "type": "v2-8", "url": "grpc://10.0.0.2:8470"}
    with database.write() as session:
        lifecycle.mark_running(session, job, {"pid": 1, "allocation": tpu})
    shown = client.get(f"/jobs/{job_id}").json()["tpu"]
    assert shown == {"zone": "us-central1-b", "name": "gj-1", "type": "v2-8", "grpcUrl": tpu["url"], "nodes": []}
    assert re.search("gj-1</code>, v2-8.*us-central1-b, grpc://10.0.0.2:8470", client.get(f"/ui/jobs/{job_id}").text)


def test_gpus_and_peaks_are_shown_once_they_are_known(client, database, worker):
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    job = worker.claim()
    gpus = [
        {"index": "3", "uuid": "GPU-3", "name": "NVIDIA Test GPU", "memory": 2**34, "serial": None, "driver": "550.1"},
        {"index": "5"},
    ]
    with database.write() as session:
        job = lifecycle.mark_running(session, job, {"pid": 1, "gpus": gpus})
    shown = client.get(f"/jobs/{job_id}").json()
    assert {name: shown[name] for name in shown if name.startswith("gpu") and name != "gpuHours"} == {
        "gpuName": "NVIDIA Test GPU",
        "gpuMem": 2**34,
        "gpuDriver": "550.1",
        "gpuCuda": None,
        "gpuCount": 2,
        "gpus": [
            {"index": "3", "uuid": "GPU-3", "serial": None, "name": "NVIDIA Test GPU", "memory": 2**34},
            {"index": "5", "uuid": None, "serial": None, "name": None, "memory": None},
        ],
    }
    assert shown["usage"] is None
    with database.write() as session:
        update_attempt(session, job, sampled_seconds=4.0, peak_memory_bytes=7, mean_gpu_percent=12.345)
    listed = client.get("/jobs").json()["jobs"][0]
    assert listed["usage"] == {
        "sampledSeconds": 4.0,
        "peakMemoryBytes": 7,
        "peakCpuPercent": None,
        "meanCpuPercent": None,
        "peakGpuMemoryBytes": None,
        "peakGpuPercent": None,
        "meanGpuPercent": 12.3,
        "meanHostCpuPercent": None,
    }
    page = client.get(f"/ui/jobs/{job_id}").text
    assert re.search("2 . NVIDIA Test GPU, 16 GiB each", page)
    assert "0 MiB memory" in page


JOB = {"machineType": "CPU", "command": "true"}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/jobs", JOB | {"metricPatterns": ["a=x\0y(\\d)"]}, "metricPatterns.0"),
        ("/jobs", JOB | {"params": {"a": "\0"}}, "params.a"),
        ("/keys", {"name": "a\0b"}, "name"),
        ("/schedules", JOB | {"cron": "* * * * *\0"}, "cron"),
        ("/projects", {"name": "a\0"}, "name"),
        ("/jobs/createJob", JOB | {"tags": ["a\0"]}, "tags.0"),
    ],
)
def test_a_nul_in_a_body_is_refused_by_name(client, path, body, field):
    answer = client.post(path, json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (400, field), answer.text
    assert answer.json()["error"]["message"] == f"{field}: the value contains a NUL character; remove it."


@pytest.mark.parametrize("half", ["\\ud800", "x\\udfff", "\\udc00\\ud800"])
@pytest.mark.parametrize("path", ["/jobs", "/keys", "/projects", "/schedules", "/jobs/createJob"])
def test_half_a_surrogate_pair_in_a_body_is_refused(client, path, half):
    """In JSON it is written as ASCII, and no database stores it."""
    fields = json.dumps(JOB | {"cron": "* * * * *"} if path in {"/jobs", "/schedules", "/jobs/createJob"} else {})
    body = fields[:-1] + (", " if len(fields) > 2 else "") + f'"name": "{half}"}}'
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 422, answer.text
    assert re.search("surrogate|hex escape", answer.json()["error"]["message"])
