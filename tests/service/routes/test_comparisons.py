"""Comparisons over HTTP: made of new or existing jobs, and measured from their metrics."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import select
from support.live_service import make_form, make_job_body, make_zip

from core.comparison import comparisons, measurement
from core.db.models.comparisons import Comparison
from core.db.models.jobs import Attempt, Job
from core.errors import StoreUnavailable
from core.jobs import queries
from core.jobs.tracking import metrics


def submit(client, *, headers=None, **fields):
    return client.post("/comparisons", json=make_job_body(machineType="CPU,V100", **fields), headers=headers)


def error(answer):
    return answer.status_code, answer.json()["error"]["field"]


def test_one_job_on_each_machine_type_and_repeat(client):
    answer = submit(client, name="digits", repeats=2, metric="accuracy", target=0.9, envVars={"A": "1"})
    assert answer.status_code == 201, answer.text
    made = answer.json()
    jobs = [client.get(f"/jobs/{one['jobId']}").json() for row in made["rows"] for one in row["members"]]
    assert [(job["machineType"], job["envVars"]["SEED"]) for job in jobs] == [
        *(("CPU", "1"), ("CPU", "2"), ("V100", "1"), ("V100", "2"))
    ]
    assert {(job["name"], job["envVars"]["A"]) for job in jobs} == {("digits", "1")}
    assert (made["name"], made["jobs"], made["ended"], made["differences"]) == ("digits", 4, 0, [])
    assert client.get(f"/comparisons/{made['id']}").json() == made


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"machineType": "CPU,nosuch"}, (400, "machineType")),
        ({"machineType": "CPU"}, (400, "machineType")),
        ({"machineType": "CPU,V100", "repeats": 51}, (422, "repeats")),
        ({"machineType": "CPU,V100,P100", "repeats": 50}, (400, "machineType")),
        ({"target": 0.5}, (400, "metric")),
        ({"metric": "x" * 201}, (400, "metric")),
        ({"goal": "up"}, (422, "goal")),
        ({"metric": "loss:min", "goal": "max"}, (400, "goal")),
        ({"envVars": {"SEED": "one"}}, (400, "envVars")),
        ({"nosuch": 1}, (422, "nosuch")),
        ({"workspaceSha256": "0" * 64}, (404, "workspaceSha256")),
    ],
)
def test_an_impossible_comparison_makes_no_job(client, fields, expected):
    assert error(client.post("/comparisons", json=make_job_body(machineType="CPU,V100") | fields)) == expected
    assert client.get("/jobs").json()["jobs"] == []
    assert client.get("/comparisons").json() == {"comparisons": [], "next": None}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"metric": "loss:min"}, ("loss", "min")),
        ({"metric": "accuracy:min"}, ("accuracy", "min")),
        ({"metric": "val/loss:max", "goal": "max"}, ("val/loss", "max")),
        ({"metric": "val_loss"}, ("val_loss", "min")),
        ({"metric": "val_loss", "goal": "max"}, ("val_loss", "max")),
        ({"metric": "accuracy"}, ("accuracy", "max")),
        ({"metric": "a:b"}, ("a:b", "max")),
    ],
)
def test_the_metric_says_whether_low_or_high_is_good(client, fields, expected):
    made = submit(client, **fields).json()
    assert (made["metric"], made["goal"]) == expected


def test_a_full_queue_takes_none_of_the_jobs(client, stores):
    stores.settings.limits.queued_per_key = 3
    assert submit(client, repeats=2).status_code == 429
    assert client.get("/jobs").json()["jobs"] == []


def test_a_repeated_request_makes_nothing_new(client):
    headers = {"Idempotency-Key": "k"}
    first, again = (submit(client, headers=headers) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json()["id"] == again.json()["id"]
    assert len(client.get("/jobs").json()["jobs"]) == 2
    assert submit(client, headers=headers, repeats=2).status_code == 422


def test_a_request_that_another_one_with_its_key_outran_may_be_repeated(client, database):
    """Over PostgreSQL both may have found that there is no comparison yet."""
    made = submit(client, headers={"Idempotency-Key": "k"}).json()
    ids = [job["id"] for job in client.get("/jobs").json()["jobs"]]
    with database.write() as session:
        jobs = [queries.get(session, job_id) for job_id in ids]
        owner = comparisons.get(session, made["id"]).submitted_by
        with pytest.raises(StoreUnavailable):
            comparisons.create(session, Comparison(submitted_by=owner, goal="max", idempotency_key="k"), jobs)
        session.rollback()


def test_the_table_is_measured_from_metrics(client, train):
    made = submit(client, metric="accuracy", target=0.8).json()
    train(2, [0.5, 0.7, 0.8, 0.9, 0.85])
    train(0.5, [0.4, 0.8, 0.9, 0.95, 0.96])
    found = client.get(f"/comparisons/{made['id']}").json()
    cpu, v100 = found["rows"]
    assert [row["stepsPerSecond"]["median"] for row in found["rows"]] == pytest.approx([5, 20])
    assert [row["speedup"] for row in found["rows"]] == pytest.approx([1, 4])
    assert [row["final"]["median"] for row in found["rows"]] == [0.85, 0.96]
    assert cpu["secondsToTarget"]["median"] == pytest.approx(6, abs=0.01)
    assert v100["secondsToTarget"]["median"] == pytest.approx(1, abs=0.01)
    assert cpu["costToTarget"] == pytest.approx(cpu["pricePerHour"] * 6 / 3600, rel=0.01)
    assert v100["costPer1000Steps"] == pytest.approx(v100["pricePerHour"] * 50 / 3600, rel=0.01)
    assert cpu["peakMemoryBytes"] == 1000
    assert {(row["fastest"], row["cheapest"], row["mostAccurate"]) for row in found["rows"]} == {(None, None, None)}
    assert found["results"][0] == (
        "Fastest (simulated): not decided: at least 2 more repeats on CPU and V100 needed, since one repeat does "
        "not rule out chance."
    )
    assert cpu["members"][0]["stepsToTarget"] == 30
    assert any("Simulated machine types" in note for note in found["notes"])


def test_no_value_of_the_metric_is_missed_among_very_many(client, train, monkeypatch):
    monkeypatch.setattr(measurement, "READ_VALUES", 1000)
    made = submit(client, metric="val", target=0.8).json()
    train(0.01, [{"val": 0.9 if n == 1500 else 0.5} for n in range(1, 3001)])
    cpu = client.get(f"/comparisons/{made['id']}").json()["rows"][0]
    assert (cpu["final"]["median"], cpu["members"][0]["stepsToTarget"]) == (0.5, 15_000)


def test_three_repeats_rank_machines_and_say_how_surely(client, train):
    made = submit(client, metric="accuracy", repeats=3).json()
    for seconds in (2.0, 0.5, 2.1, 0.52, 1.9, 0.49):
        train(seconds, [0.5, 0.9])
    found = client.get(f"/comparisons/{made['id']}").json()
    cpu, v100 = found["rows"]
    assert [(row["fastest"], row["cheapest"], row["mostAccurate"]) for row in (cpu, v100)] == [(2, 1, 1), (1, 2, 1)]
    assert [row["labels"] for row in (cpu, v100)] == [["cheapest"], ["fastest"]]
    assert v100["slowerBy"] is None
    assert 2.4 < cpu["slowerBy"]["low"] < cpu["slowerBy"]["value"] < cpu["slowerBy"]["high"] < 3.6
    assert found["results"][0].startswith("Fastest (simulated): V100; CPU, the runner-up, takes 3.9")
    assert found["results"][2] == (
        "Most accurate (simulated): not decided between CPU and V100, which show no measurable difference."
    )


def test_the_decision_says_how_sure_it_is_and_what_would_change_it(client, train):
    made = submit(client, metric="accuracy", target=0.9, repeats=3).json()
    assert made["decision"] is None
    for seconds in (2.0, 0.5, 2.1, 0.52, 1.9, 0.49):
        train(seconds, [0.5, 0.9])
    shown = client.get(f"/comparisons/{made['id']}").json()
    decision, (cpu, v100) = shown["decision"], shown["rows"]
    assert (decision["machineType"], decision["by"], decision["contenders"]) == ("CPU", "cost", ["CPU"])
    assert decision["probability"] > 0.95
    assert decision["moreRepeats"] is None
    ratio = v100["costToTarget"] / cpu["costToTarget"]
    assert decision["breakEvenPrice"] == pytest.approx(cpu["pricePerHour"] * ratio, rel=0.05)
    assert decision["headline"].startswith("CPU is best (all are simulated, so this is not a recommendation): $")
    assert "to accuracy 0.9; cheapest with a probability of 9" in decision["headline"]
    wins, next_best = decision["changes"]
    assert wins.startswith(f"CPU wins as long as it costs less than ${decision['breakEvenPrice']:.3g}/h; it costs $")
    assert "list price" in wins, "the source of the price stands where it decides"
    assert next_best.startswith("V100, the runner-up, wins below $")
    page = client.get(f"/ui/comparisons/{made['id']}").text
    assert decision["headline"] in page
    assert "wins as long as it costs less than" in page


def test_one_repeat_is_a_decision_that_asks_for_more(client, train):
    made = submit(client).json()
    for seconds in (2.0, 0.5):
        train(seconds, [0.5, 0.9])
    decision = client.get(f"/comparisons/{made['id']}").json()["decision"]
    assert (decision["probability"], decision["contenders"], decision["moreRepeats"]) == (None, ["CPU", "V100"], 2)


def test_an_old_price_is_said_where_it_decides(client, train):
    made = submit(client).json()
    for seconds in (2.0, 0.5):
        train(seconds, [0.5, 0.9])
    changes = client.get(f"/comparisons/{made['id']}").json()["decision"]["changes"]
    machines = {one["name"]: one for one in client.get("/machine-types").json()["machineTypes"]}
    for name in ("CPU", "V100"):
        [said] = [text for text in changes if text.startswith(name)]
        assert machines[name]["priceSource"] in said
        assert ("older than six months" in said) is machines[name]["priceIsOld"]


def test_a_repeat_is_a_clone_with_the_next_seed_below_the_same_ceiling(client, stores):
    made = submit(client, maxCost=0.1, timeLimit=3600, maxAttempts=2).json()
    path, repeats = f"/comparisons/{made['id']}/repeats", {"machineTypes": ["V100"], "maxCost": 0.5}
    first = client.get(f"/jobs/{made['rows'][1]['members'][0]['jobId']}").json()
    assert first["maxCost"] == 0.1
    for _ in range(2):  # the second is a repeat of the request
        found = client.post(path, json=repeats, headers={"Idempotency-Key": "k"}).json()
    assert [len(row["members"]) for row in found["rows"]] == [1, 2]
    again = client.get(f"/jobs/{found['rows'][1]['members'][1]['jobId']}").json()
    assert (again["machineType"], again["envVars"]["SEED"], again["command"]) == ("V100", "2", first["command"])
    assert again["maxCost"] == 0.5
    with stores.database.read() as session:
        assert set(session.scalars(select(Job.cost_set))) == {made["id"]}
    assert found["differences"] == []
    assert error(client.post(path, json={"machineTypes": ["T4"]})) == (400, "machineTypes")
    assert error(client.post(path, json={"maxJobCosts": {"V100": 1}}))[0] == 422
    assert client.post("/comparisons/cnosuch0000000/repeats", json=repeats).status_code == 404


def test_the_log_names_each_job_as_it_does_those_submitted_alone(client, caplog):
    caplog.set_level("INFO")
    made = submit(client).json()
    client.post(f"/comparisons/{made['id']}/repeats", json={"machineTypes": ["CPU"]}).raise_for_status()
    logged = {record.job_id for record in caplog.records if record.message == "job_submitted"}
    assert logged == {job["id"] for job in client.get("/jobs").json()["jobs"]}
    assert len(logged) == 3


def test_repeats_of_a_serial_comparison_wait_for_each_other(client, worker):
    worker.register()
    made = submit(client, serial=True).json()
    last = made["rows"][1]["members"][0]["jobId"]
    found = client.post(f"/comparisons/{made['id']}/repeats", json={"machineTypes": ["CPU", "V100"]}).json()
    cpu, v100 = (client.get(f"/jobs/{row['members'][1]['jobId']}").json() for row in found["rows"])
    assert cpu["message"].endswith(f"{last} has ended.")
    assert v100["message"].endswith(f"{cpu['id']} has ended.")


def test_survivors_do_not_win_in_silence(client, train):
    made = submit(client, repeats=3).json()
    for number, seconds in enumerate((2.0, 0.5, 2.1, 0.52, 1.9, 0.49)):
        train(seconds, [0.5, 0.9], reason="exit_nonzero" if number == 3 else "completed")
    found = client.get(f"/comparisons/{made['id']}").json()
    assert [row["marks"] for row in found["rows"]] == [["simulated"], ["simulated", "1 of 3 failed"]]
    assert "V100 (1 of 3 failed)" in found["results"][0]
    assert found["rows"][1]["title"] == "V100 (1 of 3 failed)"
    page = client.get(f"/ui/comparisons/{made['id']}").text
    chart = page[page.index("Cost by running time") :]
    assert "V100 (1 of 3 failed)" in chart, "its point says so, too"


def test_repeats_that_ended_without_a_value_are_counted_beside_the_median(client, train):
    made = submit(client, repeats=3, metric="accuracy").json()
    for number in range(6):
        train(1.0, [0.5, 0.9] if number != 3 else [{"accuracy": math.nan, "lr": 0.1}] * 2)
    found = client.get(f"/comparisons/{made['id']}").json()
    assert [row["marks"][1:] for row in found["rows"]] == [[], ["1 of 3 without a final value"]]
    assert "V100 (1 of 3 without a final value)" in found["results"][2]


def test_members_that_ran_side_by_side_on_one_host_are_marked(client, train, database):
    made = submit(client).json()
    ids = [train(2.0, [0.5, 0.9]), train(1.0, [0.5, 0.9])]
    with database.write() as session:
        first, second = (session.get(Attempt, (job_id, 1)) for job_id in ids)
        second.started_at, second.ended_at = first.ended_at, first.ended_at + timedelta(seconds=2)
    apart = client.get(f"/comparisons/{made['id']}").json()
    assert [row["marks"] for row in apart["rows"]] == [["simulated"]] * 2
    with database.write() as session:
        second = session.get(Attempt, (ids[1], 1))
        second.started_at -= timedelta(seconds=1)
    found = client.get(f"/comparisons/{made['id']}").json()
    assert [row["marks"][1] for row in found["rows"]] == ["1 of 1 ran side by side"] * 2
    assert any("slowed each other" in note for note in found["notes"])
    with database.write() as session:
        session.get(Attempt, (ids[1], 1)).host = "other"
    assert client.get(f"/comparisons/{made['id']}").json()["rows"][0]["marks"] == ["simulated"]


def test_a_serial_comparison_runs_one_job_after_the_other(client, worker):
    worker.register()
    made = submit(client, serial=True).json()
    first_id, second_id = (row["members"][0]["jobId"] for row in made["rows"])
    alone = client.post("/jobs", json=make_job_body()).json()["id"]
    first = worker.start()
    assert first.id == first_id
    waiting = client.get(f"/jobs/{second_id}").json()
    assert waiting["reason"] == "after_job"
    assert waiting["message"] == f"The job starts when {first_id} has ended."
    assert worker.start().id == alone, "it waits though there is room; others do not"
    worker.end(first, "exit_nonzero", exit_code=1)
    assert worker.start().id == second_id


def test_the_load_by_others_stands_beside_the_machine_type(client, train, database):
    made = submit(client).json()
    ids = [train(2.0, [0.5, 0.9]), train(1.0, [0.5, 0.9])]
    with database.write() as session:
        for job_id, host in zip(ids, (310.0, 130.0), strict=True):
            attempt = session.get(Attempt, (job_id, 1))
            attempt.sampled_seconds, attempt.mean_cpu_percent, attempt.mean_host_cpu_percent = 2.0, 100.0, host
    found = client.get(f"/comparisons/{made['id']}").json()
    assert [row["members"][0]["otherCpus"] for row in found["rows"]] == [2.1, 0.3]
    assert [row["marks"][1:] for row in found["rows"]] == [["other programs kept 2.1 CPUs busy"], []]
    assert "other programs kept 2.1 CPUs busy" in client.get(f"/ui/comparisons/{made['id']}").text


def fronts(found):
    names = ("onMetricTimeFront", "onMetricCostFront", "onTimeCostFront")
    return {row["machineType"]: tuple(row[name] for name in names) for row in found["rows"]}


def test_the_fronts_and_who_is_left_out_of_them_are_told(client, train):
    made = client.post(
        "/comparisons", json=make_job_body(machineType="CPU,T4,V100", metric="accuracy", target=0.8)
    ).json()
    assert set(fronts(made).values()) == {(None, None, None)}
    train(2, [0.5, 0.7, 0.8, 0.9])
    train(1, [0.5, 0.6, 0.7, 0.75])
    train(1, [0.5, 0.7, 0.8, 0.9])
    found = client.get(f"/comparisons/{made['id']}").json()
    assert fronts(found) == {"CPU": (False, True, True), "T4": (False, True, None), "V100": (True, False, True)}
    cpu = found["rows"][0]
    assert cpu["cost"] == pytest.approx(cpu["pricePerHour"] * 8 / 3600, rel=0.01)
    assert "Left out of the Pareto front of time and cost because a measurement is missing: T4." in found["notes"]


def test_unlike_jobs_are_on_no_front(client, train):
    jobs = [make_job_body(machineType=each, envVars={"RATE": each}) for each in ("CPU", "V100")]
    ids = [client.post("/jobs", json=job).json()["id"] for job in jobs]
    made = client.post("/comparisons/from-jobs", json={"jobs": ids, "metric": "accuracy"}).json()
    for seconds in (2, 1):
        train(seconds, [0.5, 0.9])
    found = client.get(f"/comparisons/{made['id']}").json()
    assert set(fronts(found).values()) == {(None, None, None)}
    assert not any("Pareto" in note for note in found["notes"])


def test_deleted_metrics_are_no_missed_target(client, train, database):
    made = submit(client, metric="accuracy", target=0.8).json()
    train(1, [0.5, 0.7])
    train(1, [0.5, 0.9])
    [cpu], _ = ([one["jobId"] for one in row["members"]] for row in made["rows"])
    assert "Not every job reached the target: CPU." in client.get(f"/comparisons/{made['id']}").json()["notes"]
    with database.write() as session:
        queries.get_row(session, cpu).logs_removed_at = datetime.now(UTC)
    metrics.remove(database, cpu)
    found = client.get(f"/comparisons/{made['id']}").json()
    assert f"Measurements are missing because metrics were deleted together with logs: {cpu}." in found["notes"]
    assert not any("reached the target" in note for note in found["notes"])
    assert found["rows"][0]["final"] is None


def test_a_failed_job_is_shown_and_not_measured(client, train):
    made = submit(client, metric="accuracy", target=0.8).json()
    train(1, [0.9], reason="exit_nonzero")
    found = client.get(f"/comparisons/{made['id']}").json()
    assert (found["rows"][0]["failed"], found["rows"][0]["stepsPerSecond"]) == (1, None)
    assert any("have not ended" in note for note in found["notes"])


def test_existing_jobs_are_compared(client):
    ids = [client.post("/jobs", json=make_job_body(machineType=one)).json()["id"] for one in ("CPU", "V100")]
    answer = client.post("/comparisons/from-jobs", json={"jobs": ids, "metric": "loss", "goal": "min"})
    assert answer.status_code == 201, answer.text
    assert [one["jobId"] for row in answer.json()["rows"] for one in row["members"]] == ids
    assert error(client.post("/comparisons/from-jobs", json={"jobs": ids[:1]})) == (400, "jobs")
    assert error(client.post("/comparisons/from-jobs", json={"jobs": ids[:1] * 2})) == (400, "jobs")
    assert client.post("/comparisons/from-jobs", json={"jobs": [ids[0], "jnosuch0000000"]}).status_code == 404


def test_other_programs_are_refused_and_the_answer_names_them(client):
    archives = [make_zip({"main.py": text}) for text in (b"1", b"2")]
    jobs = [client.post("/jobs", files=make_form(make_job_body(), archive)).json() for archive in archives]
    refused = client.post("/comparisons/from-jobs", json={"jobs": [job["id"] for job in jobs]})
    assert error(refused) == (400, "jobs")
    for job in jobs:
        assert job["workspaceContents"] in refused.text
        assert job["id"] in refused.text


def test_comparisons_are_listed_and_deleted(client):
    ids = [submit(client).json()["id"] for _ in range(3)]
    page = client.get("/comparisons", params={"limit": 2}).json()
    assert [one["id"] for one in page["comparisons"]] == ids[:0:-1]
    last = client.get("/comparisons", params={"limit": 2, "after": page["next"]}).json()
    assert ([one["id"] for one in last["comparisons"]], last["next"]) == (ids[:1], None)
    assert error(client.get("/comparisons", params={"after": "cnosuch"})) == (400, "after")
    assert client.delete(f"/comparisons/{ids[0]}").status_code == 204
    assert error(client.get(f"/comparisons/{ids[0]}")) == (404, "comparisonId")
    assert len(client.get("/jobs").json()["jobs"]) == 6, "its jobs stay"
