"""Sweeps over HTTP, with trials that the tests evaluate: jobs, ends, early stops, pauses, budgets and refusals."""

import math
import threading

import pytest
from sqlalchemy import insert, update
from support.live_service import make_form, make_job_body, make_zip, wait_until

from core.db.database import now
from core.db.models.jobs import Attempt, Job
from core.db.models.sweeps import SweepTrial
from core.jobs import lifecycle, queries
from core.jobs.cloud_resources import CloudResource
from core.jobs.templates import templates
from core.security import api_keys, credentials
from core.security.encryption import Vault
from service.submission.sweeps import MAX_FAILURES, advance, advance_all

SPACE = {"lr": "log:1e-5..1e-1", "opt": "adam,sgd"}


def distance(job):
    """Return the loss of these tests: how far the exponent of `lr` is from -3."""
    return abs(math.log10(job.spec.params["lr"]) + 3) + (job.spec.params["opt"] == "sgd")


def evaluate_all(stores, worker, log, sweep_id, show):
    """Run the jobs of a sweep one after the other, until it has ended."""
    for ends in range(100):

        def is_settled(ends=ends):
            advance(stores, sweep_id)
            found = show({"id": sweep_id})
            running = min(found["parallel"], found["maxTrials"] - ends)
            counts = {"complete": ends, "running": running}
            ended = found["state"] == "finished" or running
            return ended and found["counts"] == {state: count for state, count in counts.items() if count}

        wait_until(is_settled)
        if show({"id": sweep_id})["state"] == "finished":
            return
        job = worker.start()
        log(job, [distance(job) + 1, distance(job)])
        worker.end(job)


def test_trials_are_jobs_of_an_array_with_parameters_of_their_own(client, stores, worker, log, show):
    made = client.post(
        "/sweeps",
        files=make_form(
            make_job_body(
                space=SPACE, metric="loss:min", trials=4, parallel=2, name="tune", project="p", params={"a": 1}
            ),
            make_zip(),
        ),
    ).json()
    assert (made["state"], made["reason"], made["counts"], made["best"]) == ("running", None, {"running": 2}, None)
    assert (made["method"], made["metric"], made["goal"], made["maxTrials"]) == ("tpe", "loss", "min", 4)
    jobs = client.get("/jobs", params={"q": f"sweep:{made['id']}"}).json()["jobs"]
    assert [job["name"] for job in jobs] == ["tune[1]", "tune[0]"]
    first = jobs[-1]
    params = made["trials"][0]["params"]
    assert first["params"] == params | {"a": 1}
    assert first["arrayValue"] == f"--lr={params['lr']} --opt={params['opt']}"
    assert (first["arrayId"], first["project"]) == (made["id"], "p")
    assert first["workspaceSha256"] == made["workspaceSha256"]
    folded = client.get("/jobs", params={"fold": "true"}).json()["jobs"]
    assert [job["arrayMembers"] for job in folded] == [{"Pending": 2}]
    worker.register()
    evaluate_all(stores, worker, log, made["id"], show)
    ended = show(made)
    assert (ended["state"], ended["reason"]) == ("finished", "All 4 trials have ended.")
    assert [trial["state"] for trial in ended["trials"]] == ["complete"] * 4
    best = min(ended["trials"], key=lambda trial: trial["value"])
    assert ended["best"] == best
    assert (best["step"], best["best"]) == (2.0, best["value"])
    assert client.get("/sweeps").json()["sweeps"][0]["id"] == made["id"]
    assert advance_all(stores) == 0


def test_the_same_seed_tries_the_same(stores, worker, log, sweep, show):
    worker.register()
    found = []
    for seed in (7, 7, 8):
        made = sweep(seed=seed, trials=14, parallel=1)
        evaluate_all(stores, worker, log, made["id"], show)
        found.append([trial["params"] for trial in show(made)["trials"]])
    assert len(found[0]) == 14
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize(
    ("fields", "status", "field"),
    [
        ({"space": {"lr": "1..1"}}, 400, "space.lr"),
        ({"space": {"lr": None}}, 422, "space.lr"),
        ({"space": {"lr": [[1]]}}, 422, "space.lr"),
        ({"metric": "loss"}, 400, "metric"),
        ({"metric": None}, 400, "metric"),
        ({"trials": None}, 400, "trials"),
        ({"trials": 1001}, 422, "trials"),
        ({"parallel": 0}, 422, "parallel"),
        ({"stop": "never"}, 422, "stop"),
        ({"method": "magic"}, 422, "method"),
        ({"maxGpuHours": 0}, 400, "maxGpuHours"),
        ({"maxDollars": 1}, 422, "maxDollars"),
        ({"array": "0-2"}, 400, "array"),
        ({"space": {"p": "hi --lr=9"}, "trials": 1, "command": "x $GRADIENT_ARRAY_VALUE"}, 400, "space.p"),
        ({"after": ["j123"]}, 400, "after"),
        ({"machineType": "nosuch"}, 400, "machineType"),
        ({"nosuch": 1}, 422, "nosuch"),
    ],
)
def test_what_could_not_be_tried_is_no_sweep(client, fields, status, field):
    body = make_job_body(space=SPACE, metric="loss:min", trials=4) | fields
    answer = client.post("/sweeps", json=body)
    assert (answer.status_code, answer.json()["error"]["field"]) == (status, field), answer.text
    assert client.get("/sweeps").json()["sweeps"] == []


def test_a_repeated_request_makes_one_sweep(client):
    def send(**fields):
        body = make_job_body(space=SPACE, metric="loss:min", trials=4) | fields
        return client.post("/sweeps", json=body, headers={"Idempotency-Key": "k"})

    first, again = send(), send()
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert send(trials=5).status_code == 422
    assert client.get("/sweeps/snosuch").json()["error"]["name"] == "SweepNotFound"


def test_asha_stops_a_bad_trial_with_a_reason(client, stores, worker, log, sweep, show, settle):
    worker.register()
    made = sweep(stop="asha", trials=4, parallel=4)
    good, fair, bad, waiting = worker.start(), worker.start(), worker.start(), made["trials"][3]["jobId"]
    log(good, [1.0])
    log(fair, [2.0])
    assert wait_stopped(stores, made, 0) == []
    log(bad, [9.0])
    assert wait_stopped(stores, made, 0) == [], "this may be its last value, as no trial is complete"
    log(bad, [8.0], first=2)
    assert wait_stopped(stores, made, 1) == [bad.id]
    stopping = show(made)["trials"][2]
    assert (stopping["state"], stopping["value"]) == ("running", 8.0)
    assert stopping["reason"] == "value 1 of loss, 9, is not in the best third of 3"
    log(bad, [0.1], first=3)
    worker.end(worker.get(bad.id), "stopped_by_user")
    settle(made, lambda found: found["trials"][2]["state"] == "pruned")
    job = client.get(f"/jobs/{bad.id}").json()
    assert (job["state"], job["reason"]) == ("Cancelled", "stopped_by_sweep")
    assert job["message"] == "Stopped by its sweep: value 1 of loss, 9, is not in the best third of 3."
    log(good, [0.5, 0.4], first=2)
    worker.end(worker.get(good.id))
    settle(made, lambda found: found["counts"].get("complete"))
    best = show(made)["best"]
    assert (best["number"], best["state"], best["value"]) == (2, "pruned", 0.1), "the best of all, with its state"
    assert worker.get(waiting).state == "queued"


def test_a_trial_that_is_told_to_stop_and_ends_by_itself_is_complete_without_a_reason(
    stores, worker, log, sweep, show, settle
):
    worker.register()
    made = sweep(stop="asha", trials=3, parallel=3)
    jobs = [worker.start() for _ in range(3)]
    for loss, job in enumerate(jobs):
        log(job, [loss, loss])
        wait_stopped(stores, made, 0)
    log(jobs[2], [2.0], first=3)
    assert wait_stopped(stores, made, 0) == [], "the rung of its third value is judged by the fourth"
    log(jobs[0], [0.0], first=3)
    log(jobs[1], [1.0], first=3)
    log(jobs[2], [2.0], first=4)
    assert wait_stopped(stores, made, 1) == [jobs[2].id]
    worker.end(worker.get(jobs[2].id))
    settle(made, lambda found: found["trials"][2]["state"] != "running")
    assert [show(made)["trials"][2][name] for name in ("state", "reason")] == ["complete", None]


def wait_stopped(stores, made, count):
    """Make rounds until so many jobs of a sweep are asked to stop; return their ids."""
    found = []

    def is_so():
        advance(stores, made["id"])
        with stores.database.read() as session:
            found[:] = [job.id for job in queries.members(session, made["id"]) if job.stop_requested_at]
        return len(found) == count

    wait_until(is_so)
    return found


def test_failures_in_a_row_pause_the_sweep_which_runs_them_again(client, worker, log, sweep, show, settle):
    worker.register()
    made = sweep(trials=7, parallel=2, space={"x": "1..7"}, method="grid")
    for number in range(MAX_FAILURES):
        job = worker.start()
        if number == 2:
            worker.end(job, "stopped_by_user")  # which is no failure
            settle(made, lambda found: found["counts"].get("cancelled"))
            job = worker.start()
        worker.end(job, *(["completed"] if number == 1 else ["exit_nonzero"]), exit_code=number != 1)
        settle(made, lambda found, ended=number + 1: found["counts"].get("failed") == ended)
    paused = show(made)
    assert paused["state"] == "paused"
    assert paused["reason"].startswith(f"{MAX_FAILURES} consecutive trials failed, the last one being job {job.id}: ")
    assert paused["reason"].endswith("Fix the cause, then resume the sweep, which runs them again, or create another.")
    assert paused["counts"]["running"] == 1, "those that run go on"
    resumed = client.post(f"/sweeps/{made['id']}/resume").json()
    assert (resumed["state"], resumed["counts"]["waiting"]) == ("running", MAX_FAILURES + 1)
    for ended in range(1, 8):
        settle(made, lambda found, ended=ended: found["counts"].get("running") == min(2, 8 - ended))
        job = worker.start()
        log(job, [float(job.spec.params["x"])])
        worker.end(job, *(["exit_nonzero"] if ended == 7 else []), exit_code=int(ended == 7))
    settle(made, lambda found: found["state"] == "finished")
    again = f"1 failed: `gradient-cli sweeps resume {made['id']}` runs them again."
    assert show(made)["reason"] == f"All 7 trials have ended. {again}"
    assert [trial["params"]["x"] for trial in show(made)["trials"]] == list(range(1, 8))
    jobs = client.get("/jobs", params={"q": f"sweep:{made['id']}", "limit": 200}).json()["jobs"]
    assert sorted(job["arrayIndex"] for job in jobs) == list(range(7 + MAX_FAILURES + 1)), "each has its own artifacts"
    assert client.post(f"/sweeps/{made['id']}/resume").json()["counts"] == {"complete": 6, "waiting": 1}
    settle(made, lambda found: found["counts"].get("running"))
    worker.end(worker.start(), "exit_nonzero", exit_code=1)
    settle(made, lambda found: found["state"] == "finished")


def test_what_cannot_be_resumed_says_why(client, stores, worker, log, sweep, settle):
    worker.register()
    made, spent = sweep(trials=1), sweep(maxCost=0.1, trials=4)

    def resume(one):
        refused = client.post(f"/sweeps/{one['id']}/resume")
        assert refused.status_code == 400
        return refused.json()["error"]["message"]

    assert "is running, and none of its trials failed or was cancelled" in resume(made)
    job = worker.start()
    log(job, [1.0])
    worker.end(job)
    settle(made, lambda found: found["state"] == "finished")
    assert "has ended, and none of its trials failed or was cancelled" in resume(made)
    job = worker.start()
    run_for_two_hours(stores, job)
    settle(spent, lambda found: found["state"] == "finished")
    assert "The ceiling of sweep" in resume(spent)


def test_paused_resumed_stopped_and_deleted(client, stores, worker, sweep, show, bob):
    worker.register()
    made = sweep(trials=20)
    running = worker.start()
    path = f"/sweeps/{made['id']}"
    assert client.post(f"{path}/stop", headers=bob[1]).status_code == 403
    paused = client.post(f"{path}/pause").json()
    assert (paused["state"], paused["reason"]) == ("paused", "Paused by its owner.")
    with stores.database.read() as session:
        assert templates.count_of_project(session, made["projectId"]) == 1
    assert client.post(f"{path}/resume").json()["reason"] is None
    stopped = client.post(f"{path}/stop").json()
    assert stopped["state"] == "stopped"
    assert worker.get(running.id).stop_requested_at is not None
    worker.end(worker.get(running.id), "stopped_by_user")
    wait_until(lambda: not advance(stores, made["id"]) and show(made)["counts"] == {"cancelled": 2})
    assert worker.get(running.id).reason == "stopped_by_user"
    assert client.delete(path, headers=bob[1]).status_code == 403
    assert client.delete(path).status_code == 204
    assert client.get(path).status_code == 404
    assert client.get(f"/jobs/{running.id}").json()["arrayId"] == made["id"]


def run_for_two_hours(stores, job):
    times = {"started_at": now(-7200), "ended_at": now()}
    with stores.database.write() as session:
        session.execute(update(Job).where(Job.id == job.id).values(times))
        session.execute(update(Attempt).where(Attempt.job_id == job.id).values(times))


@pytest.mark.parametrize(
    ("ceiling", "said"),
    [
        ({"maxCost": 0.5}, "its trials have cost $0.946, and maxCost is $0.5"),
        ({"maxGpuHours": 1, "machineType": "V100"}, "its trials have taken 2 GPU hours, and maxGpuHours is 1"),
    ],
)
def test_a_ceiling_ends_the_sweep_and_stops_its_trials(client, stores, worker, sweep, show, ceiling, said):
    worker.register()
    made = sweep(trials=None, **ceiling)
    job = worker.start()
    assert not advance(stores, made["id"])
    run_for_two_hours(stores, job)
    wait_until(lambda: not advance(stores, made["id"]) and show(made)["state"] == "finished")
    ended = show(made)
    assert ended["reason"] == f"The ceiling is spent: {said}."
    assert [trial["reason"] for trial in ended["trials"]] == [f"the ceiling is spent: {said}"] * 2
    assert client.get(f"/jobs/{ended['trials'][1]['jobId']}").json()["reason"] == "stopped_by_sweep", "it waited"
    assert worker.get(job.id).stop_requested_at is not None


@pytest.mark.parametrize("made_by", ["sweep", "array"])
def test_jobs_on_billed_machines_cost_together_what_their_pages_say(client, stores, sweep, show, made_by):
    made = sweep() if made_by == "sweep" else client.post("/jobs", json=make_job_body(array="0-1")).json()
    whole = made["id"] if made_by == "sweep" else made["arrayId"]
    ids = [job["id"] for job in client.get("/jobs", params={"array": whole}).json()["jobs"]]
    with stores.database.write() as session:
        session.execute(update(Job).where(Job.id.in_(ids)).values(backend="tpu", started_at=now(-60), ended_at=now()))
        for at, job_id in enumerate(ids):
            for attempt, began in enumerate((now(-7200), now(-3600)), 1):
                times = {"intended_at": now(-9000), "billed_at": began, "gone_at": now(-1800)}
                price = {"price_per_hour": 3.0} if at else {}
                node = {"kind": "tpu_node", "name": f"z/{at}{attempt}", "host": "h", "state": "READY"}
                session.execute(insert(CloudResource).values(job_id=job_id, attempt=attempt, **node, **times, **price))
    jobs = [client.get(f"/jobs/{job_id}").json() for job_id in ids]
    cost = sum(job["cost"] for job in jobs)
    assert jobs[1]["cost"] == pytest.approx(3.0 * 2, abs=0.01)
    assert client.get("/jobs", params={"fold": "true"}).json()["jobs"][0]["cost"] == pytest.approx(cost, abs=1e-3)
    query = f"array:{whole} cost>{jobs[1]['cost'] - 0.1} cost<{jobs[1]['cost'] + 0.1}"
    assert [job["id"] for job in client.get("/jobs", params={"q": query}).json()["jobs"]] == [ids[1]]
    if made_by == "sweep":
        assert show(made)["dollars"] == pytest.approx(cost, abs=1e-3)


def test_a_revoked_key_begins_no_trials(stores, worker, log, sweep, show, add_key):
    key_id, headers = add_key("carol")
    worker.register()
    made = sweep(headers, parallel=1)
    with stores.database.write() as session:
        api_keys.revoke(session, key_id)
    job = worker.start()
    log(job, [1.0])
    worker.end(job)
    wait_until(lambda: not advance(stores, made["id"]) and show(made)["state"] == "paused")
    assert show(made)["reason"].startswith(f"The API key {key_id} that created the sweep is revoked")
    assert show(made)["counts"] == {"complete": 1}


def test_a_login_of_git_goes_to_each_job(stores, sweep):
    made = sweep(workspace="https://me:hush@git.example/repo.git")
    assert made["workspace"] == "https://git.example/repo.git"
    vault = Vault(stores.settings)
    with stores.database.write() as session:
        for trial in made["trials"]:
            job = queries.get(session, trial["jobId"])
            assert credentials.git_login(session, vault, job) == "me:hush"
        assert credentials.reencrypt_all(session, vault) == (3, [])


def test_many_processes_at_once_begin_each_trial_once(client, stores, sweep, show):
    made = sweep(trials=40, parallel=4)
    for _ in range(9):
        with stores.database.write() as session:
            for job in queries.members(session, made["id"]):
                lifecycle.request_stop(session, job.id)
        threads = [threading.Thread(target=advance, args=(stores, made["id"])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    wait_until(lambda: not advance(stores, made["id"]) and len(show(made)["trials"]) == 40)
    jobs = client.get("/jobs", params={"q": f"sweep:{made['id']}", "limit": 200}).json()["jobs"]
    assert sorted(job["arrayIndex"] for job in jobs) == list(range(40))
    assert {trial["jobId"] for trial in show(made)["trials"]} == {job["id"] for job in jobs}


def test_a_grid_needs_no_metric(stores, worker, sweep, show):
    worker.register()
    made = sweep(space={"a": "1,2", "b": [True, "x"]}, method="grid", metric=None, trials=None, parallel=9)
    assert [list(trial["params"].values()) for trial in made["trials"]] == [[1, True], [1, "x"], [2, True], [2, "x"]]
    for _ in range(4):
        worker.end(worker.start())
    wait_until(lambda: not advance(stores, made["id"]) and show(made)["state"] == "finished")
    assert show(made)["counts"] == {"complete": 4}
    assert show(made)["best"] is None


def test_a_sweep_is_not_cloned_as_an_array_of_one_set_of_parameters(client, sweep):
    refused = client.post(f"/jobs/{sweep()['id']}/clone")
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "id")
    assert "A sweep cannot be cloned as a whole" in refused.json()["error"]["message"]


def test_the_page_of_a_sweep_without_a_running_trial_shows_it(client, sweep, database):
    made = sweep()
    client.post(f"/sweeps/{made['id']}/stop").raise_for_status()
    with database.write() as session:
        session.execute(update(SweepTrial).values(state="cancelled"))
    page = client.get(f"/ui/jobs?q=sweep:{made['id']}&charts=1")
    assert (page.status_code, "tune" in page.text) == (200, True)
