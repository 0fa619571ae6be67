"""Judgements and predictions over HTTP, from the metrics that jobs reported."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from support.live_service import OFFER, FakeWorker, make_job_body

from core.db.models.jobs import Attempt
from core.jobs.tracking import metrics

FIGURES = {
    "input_wait_share": 0.0,
    "startup_seconds": 1.0,
    "compile_seconds": 1.0,
    "flops_per_step": 4.0e12,
    "bytes_per_step": 2.2e10,
    "replicas": 1,
    "compute_bits": 32,
    "peak_device_bytes": 7.7e9,
    "batch_size": 128,
    "peak_learning_rate": 0.1,
    "weight_decay": 0.0005,
}
"""Those of a WRN-28-10 in single precision."""


@pytest.fixture
def client(docker_client):
    return docker_client


@pytest.fixture
def run(stores, database):
    """A function that runs the next job in line at a pace, for 102 seconds, with these last metrics."""
    worker = FakeWorker(stores, replace(OFFER, backends=("docker", "tpu")))
    worker.register()

    def run(seconds_per_step, **figures):
        job = worker.start()
        with database.write() as session:
            attempt = session.get(Attempt, (job.id, job.attempt))

            def line(step, seconds, values):
                at = attempt.started_at + timedelta(seconds=seconds)
                where = {"job_id": job.id, "attempt": job.attempt, "source": "job", "offset": int(seconds * 1000)}
                return where | {"step": float(step), "at": at, "values": values}

            rows = [line(step, step * seconds_per_step, {"loss": 1.0}) for step in range(1, 9)]
            metrics.add(session, [*rows, line(8, 100, FIGURES | figures)])
        worker.end(job)
        with database.write() as session:
            attempt = session.get(Attempt, (job.id, job.attempt))
            attempt.ended_at = attempt.started_at + timedelta(seconds=102)
        return job.id

    return run


def submit(client, machine="T4", **fields):
    answer = client.post("/jobs", json=make_job_body(machineType=machine, **fields))
    assert answer.status_code == 201, answer.text
    return answer.json()["id"]


def predict(client, job_id, **query):
    answer = client.get(f"/jobs/{job_id}/prediction", params=query)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    return found, {each["machineType"]: each for each in found["machines"]}


def test_a_measured_job_is_predicted_on_every_machine(client, run):
    job_id = submit(client)
    run(0.879)
    found, machines = predict(client, job_id)
    assert found["estimated"] is True
    assert found["bottleneck"]["kind"] == "compute"
    assert "mixed precision" in found["bottleneck"]["advice"][0]
    assert set(machines) == {each["name"] for each in client.get("/machine-types").json()["machineTypes"]}
    p100 = machines["P100"]
    assert p100["speedup"]["low"] < p100["speedup"]["value"] == pytest.approx(1.22, abs=0.03)
    assert p100["seconds"]["low"] < p100["seconds"]["value"] < p100["seconds"]["high"]
    assert p100["seconds"]["value"] == pytest.approx(2 + 100 / p100["speedup"]["value"], rel=0.01)
    assert p100["cost"]["value"] == pytest.approx(p100["seconds"]["value"] * p100["pricePerHour"] / 3600)
    assert (p100["fits"], machines["GPU+"]["fits"]) == (True, False)
    assert machines["T4"]["speedup"] == {"value": 1, "low": 1, "high": 1}, "its own run"
    times = [each["seconds"]["value"] for each in found["machines"] if each["seconds"]]
    assert times == sorted(times)


def test_chosen_machines_and_mixed_precision(client, run):
    job_id = submit(client)
    run(0.879)
    found, machines = predict(client, job_id, machineType="tesla t4, P100", precision="mixed")
    assert list(machines) == ["T4", "P100"]
    assert machines["T4"]["speedup"]["value"] == pytest.approx(2.08, abs=0.05)
    assert found["stepsPerSecond"] == pytest.approx(1 / 0.879)
    assert client.get(f"/jobs/{job_id}/prediction", params={"machineType": "nosuch"}).status_code == 400
    assert client.get("/jobs/jnosuch0000000/prediction").status_code == 404


def test_comparisons_correct_predictions(client, run):
    made = client.post("/comparisons", json=make_job_body(machineType="T4,P100")).json()
    run(0.879)
    run(1.5)
    first = made["rows"][0]["members"][0]["jobId"]
    _, machines = predict(client, first, machineType="P100")
    correction = machines["P100"]["correction"]
    assert correction["count"] == 1
    assert correction["ratio"] == pytest.approx(1.5 / 0.722, rel=0.02)
    _, own = predict(client, made["rows"][1]["members"][0]["jobId"], machineType="P100,T4")
    assert own["P100"]["stepSeconds"]["value"] == pytest.approx(1.5)
    assert own["T4"]["stepSeconds"]["value"] == pytest.approx(0.879, rel=0.01)
    assert machines["P100"]["stepSeconds"]["value"] == pytest.approx(1.5, rel=0.01)
    rows = client.get(f"/comparisons/{made['id']}").json()["rows"]
    assert [row["bottleneck"]["kind"] for row in rows] == ["compute", "compute"]
    job = client.get(f"/jobs/{first}").json()
    assert [(each["id"], each["url"].rpartition("/")[2]) for each in job["comparisons"]] == [(made["id"], made["id"])]


def test_a_run_bound_by_overhead_is_predicted_nowhere(client, run):
    job_id = submit(client)
    run(0.5, flops_per_step=1e9, bytes_per_step=1e6)
    found, machines = predict(client, job_id)
    assert found["bottleneck"]["kind"] == "overhead"
    assert [name for name, each in machines.items() if each["seconds"]] == ["T4"]
    assert "About as fast: the run is bound by overhead" in found["notes"][-1]


def test_hyperparameters_are_carried_over(client, run):
    job_id = submit(client, "TPU")
    run(0.01, replicas=8, batch_size=512, peak_learning_rate=0.4, weight_decay=0.000125)
    _, machines = predict(client, job_id)
    carried = machines["T4"]["carryOver"]
    assert (carried["batchSize"], carried["learningRate"], carried["weightDecay"]) == (
        64,
        pytest.approx(0.05),
        0.000125,
    )
    assert machines["TPU v3-8"]["carryOver"]["batchSize"] == 512


def test_old_prices_are_said_where_they_decide(client, run):
    submit(client)
    found = client.get(f"/jobs/{run(0.01)}/prediction").json()
    machines = {one["name"]: one for one in client.get("/machine-types").json()["machineTypes"]}
    for one in found["machines"]:
        assert one["priceSource"] == machines[one["machineType"]]["priceSource"]
    old = [one["machineType"] for one in found["machines"] if one["priceIsOld"] and one["cost"]]
    assert len(old) == len([one for one in found["machines"] if one["cost"] and one["pricePerHour"]])
    assert "Prices older than six months, set your own: all." in found["notes"]
    one = client.get(f"/jobs/{found['jobId']}/prediction", params={"machineType": "V100"}).json()
    assert one["notes"][0] == "Prices older than six months, set your own: V100."


def test_it_is_said_which_machine_is_probably_first_and_which_may_be(client, run):
    job_id = submit(client)
    run(0.879)
    found, machines = predict(client, job_id, machineType="T4,P100,V100,K80,GPU+")
    assert machines["GPU+"]["fits"] is False
    assert machines["P100"]["seconds"]["low"] < machines["V100"]["seconds"]["high"] < machines["T4"]["seconds"]["low"]
    assert machines["T4"]["cost"]["high"] < machines["V100"]["cost"]["low"]
    fastest, cheapest = found["results"]
    assert fastest.startswith("Fastest, as estimated: V100, ")
    assert fastest.endswith("; P100, K80 may be instead.")
    assert cheapest.startswith("Cheapest, as estimated: T4, $")
    assert cheapest.endswith("; all others are beyond its interval.")
    assert predict(client, job_id, machineType="T4")[0]["results"] == []
    fastest, cheapest = predict(client, job_id)[0]["results"]
    assert re.search(r"; [^,]+, [^,]+, [^,]+ and \d+ more may be instead\.$", fastest)
    assert cheapest.startswith("Cheapest of those with a price, as estimated: "), "this host has none"
