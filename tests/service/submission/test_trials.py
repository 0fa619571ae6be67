"""Trials of sweeps that programs request, evaluate and report."""

import threading

import pytest
from sqlalchemy import update

from core.db.database import now
from core.db.models.sweeps import SweepTrial
from service.submission.sweeps import MAX_FAILURES, advance
from service.submission.trials import MAX_SILENCE

SPACE = {"lr": "log:1e-5..1e-1", "opt": "adam,sgd"}


@pytest.fixture
def show(client):
    return lambda made: client.get(f"/sweeps/{made['id']}").json()


@pytest.fixture
def loop(client):
    """A function that creates a sweep without jobs."""

    def create(**fields):
        answer = client.post("/sweeps", json={"space": SPACE, "metric": "loss:min", "trials": 3} | fields)
        assert answer.status_code == 201, answer.text
        return answer.json()

    return create


def test_a_program_requests_trials_and_reports_them(client, stores, loop, show):
    made = loop(name="mine", stop="asha")
    assert (made["state"], made["parallel"], made["command"], made["trials"]) == ("running", 0, "", [])

    def ask(key):
        answer = client.post(f"/sweeps/{made['id']}/trials", json={"key": key * 16})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def tell(number, key, *values, **fields):
        steps = [{"step": step, "value": value} for step, value in enumerate(values)]
        body = {"key": key * 16, "before": 0, "values": steps, **fields}
        return client.post(f"/sweeps/{made['id']}/trials/{number}", json=body).json()

    first, again, second, third = ask("a"), ask("a"), ask("b"), ask("c")
    assert again == first, "a repeated request"
    assert [asked["trial"]["number"] for asked in (first, second, third)] == [0, 1, 2]
    assert third["trial"]["jobId"] is None
    assert ask("d") == {"trial": None, "retry": True, "state": "running", "reason": None}
    tell(0, "a", 1.0, 0.5)
    assert tell(0, "a", 1.0, 0.5, 0.25)["value"] == 0.25, "values that were taken already are left out"
    assert tell(0, "a", 0.125, before=3)["value"] == 0.125, "at a step that is not higher"
    tell(1, "b", 9.0)
    assert tell(2, "c", 3.0)["reason"] is None
    assert tell(2, "c", 2.0, before=1)["reason"] == "value 1 of loss, 3, is not in the best third of 3"
    assert tell(2, "c", end="complete")["state"] == "pruned"
    ended = tell(1, "b", None, before=1, end="complete")
    assert (ended["state"], ended["value"]) == ("complete", None), "no number is a bad value, and no failure"
    assert tell(0, "a", end="complete")["state"] == tell(0, "a", end="failed")["state"] == "complete"
    advance(stores, made["id"])
    ended = show(made)
    assert (ended["state"], ended["best"]["number"], ended["best"]["step"]) == ("finished", 0, 0.0)
    assert ask("e") == {"trial": None, "retry": False, "state": "finished", "reason": "All 3 trials have ended."}
    assert client.post(f"/sweeps/{made['id']}/trials/7", json={"key": "a" * 16}).status_code == 404


def test_a_silent_trial_is_given_to_another_program(client, stores, loop, show):
    made = loop(trials=1)
    path = f"/sweeps/{made['id']}/trials"
    asked = client.post(path, json={"key": "a" * 16}).json()["trial"]
    client.post(f"{path}/0", json={"key": "a" * 16, "values": [{"step": 5, "value": 3.0}]})
    assert client.post(path, json={"key": "b" * 16}).json()["trial"] is None
    with stores.database.write() as session:
        before = session.scalars(now().select()).one() - MAX_SILENCE * 2
        session.execute(update(SweepTrial).values(reported_at=before))
    given = client.post(path, json={"key": "b" * 16}).json()["trial"]
    assert (given["number"], given["params"], given["value"]) == (0, asked["params"], None)
    late = client.post(f"{path}/0", json={"key": "a" * 16, "end": "complete"}).json()
    assert (late["state"], late["reason"]) == (
        "cancelled",
        "It was given to another program because this one was silent.",
    )
    client.post(f"{path}/0", json={"key": "b" * 16, "values": [{"step": 0, "value": 2.0}], "end": "complete"})
    advance(stores, made["id"])
    assert (show(made)["state"], show(made)["best"]["value"]) == ("finished", 2.0)


def test_failures_and_a_stop_end_trials_of_programs(client, loop, show):
    made = loop(trials=20)

    def ask(sweep, key):
        return client.post(f"/sweeps/{sweep['id']}/trials", json={"key": key * 16}).json()["trial"]

    for key in "abcde":
        number = ask(made, key)["number"]
        told = {"key": key * 16, "end": "failed", "reason": "ValueError: x"} if key != "b" else {"key": key * 16}
        client.post(f"/sweeps/{made['id']}/trials/{number}", json=told | {"end": told.get("end", "complete")})
    paused = show(made)
    assert (paused["state"], paused["counts"]) == ("paused", {"failed": MAX_FAILURES})
    assert "the last one being trial 4: ValueError: x" in paused["reason"]
    assert paused["trials"][1]["reason"].endswith("Report one with trial.report(value).")
    assert client.post(f"/sweeps/{made['id']}/resume").json()["counts"] == {"waiting": MAX_FAILURES}
    assert ask(made, "z")["number"] == 0, "which runs again"
    stopped = loop()
    ask(stopped, "g")
    client.post(f"/sweeps/{stopped['id']}/stop")
    told = client.post(f"/sweeps/{stopped['id']}/trials/0", json={"key": "g" * 16}).json()
    assert (told["state"], told["reason"]) == ("cancelled", "Stopped by its owner.")


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"parallel": 2}, "parallel"),
        ({"maxCost": 1}, "maxCost"),
        ({"timeLimit": 5}, "timeLimit"),
        ({"projectId": "pnosuch"}, "projectId"),
    ],
)
def test_a_sweep_without_jobs_has_none_of_their_options(client, fields, field):
    answer = client.post("/sweeps", json={"space": SPACE, "metric": "loss:min", "trials": 3} | fields)
    assert (answer.status_code // 100, answer.json()["error"]["field"]) == (4, field), answer.text


def test_many_programs_at_once_get_each_trial_once(client, loop):
    made = loop(trials=24, method="random")
    found = []

    def ask(start):
        for number in range(start, 24, 4):
            key = f"{number:016}"
            found.append(client.post(f"/sweeps/{made['id']}/trials", json={"key": key}).json()["trial"]["number"])

    threads = [threading.Thread(target=ask, args=[start]) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == list(range(24))
