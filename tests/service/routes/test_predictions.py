"""Judgements and predictions over HTTP, from the metrics that jobs reported."""

import re
from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import select
from support.live_service import OFFER, FakeWorker, make_job_body

from core.db.models.jobs import Attempt, Job
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
            metrics.add(session, [*rows, line(100 / seconds_per_step, 100, FIGURES | figures)])
        worker.end(job)
        with database.write() as session:
            attempt = session.get(Attempt, (job.id, job.attempt))
            attempt.ended_at = attempt.started_at + timedelta(seconds=102)
            attempt.peak_gpu_percent = 100.0
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
    found = client.get(f"/jobs/{run(0.879)}/prediction").json()
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
    found, machines = predict(client, job_id, machineType="T4,P100,A100,K80,GPU+")
    assert machines["GPU+"]["fits"] is False
    assert machines["P100"]["seconds"]["low"] < machines["A100"]["seconds"]["high"] < machines["T4"]["seconds"]["low"]
    assert machines["A100"]["cost"]["low"] < machines["T4"]["cost"]["high"] < machines["P100"]["cost"]["low"]
    fastest, cheapest = found["results"]
    assert fastest.startswith("Fastest by estimate: A100, ")
    assert fastest.endswith("; could also be P100.")
    assert cheapest.startswith("Cheapest by estimate: T4, $")
    assert cheapest.endswith("; could also be A100.")
    _, cheapest = predict(client, job_id, machineType="T4,P100")[0]["results"]
    assert cheapest.endswith("; all others are outside its interval.")
    assert predict(client, job_id, machineType="T4")[0]["results"] == []
    fastest, cheapest = predict(client, job_id)[0]["results"]
    assert re.search(r"; could also be [^,]+, [^,]+, [^,]+ and \d+ more\.$", fastest)
    assert cheapest.startswith("Cheapest with a known price by estimate: "), "this host has none"


MEASURED = {"value": 1, "low": 1, "high": 1}


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"flops_per_step": 51200.0, "bytes_per_step": 1000.0}, "bound by overhead"),
        ({"flops_per_step": 51200.0, "bytes_per_step": 1000.0, "input_wait_share": float("nan")}, "bound by overhead"),
        ({"input_wait_share": 0.8}, "waits for its input"),
        ({"input_wait_share": 1.0}, "waits for its input"),
        ({"flops_per_step": 1e18}, "flops_per_step or bytes_per_step is wrong"),
        ({"flops_per_step": float("nan")}, "has not reported flops_per_step"),
        ({"bytes_per_step": -1.0}, "has not reported bytes_per_step"),
        ({"replicas": 2, "communication_share": 0.8}, "communication between its replicas"),
    ],
)
@pytest.mark.parametrize("simulated", [False, True])
def test_what_says_nothing_of_other_machines_is_only_measured(simulated, figures, reason, client, run, database):
    job_id = submit(client)
    with database.write() as session:
        session.scalars(select(Job).where(Job.id == job_id)).one().simulated = simulated
    run(0.879, **figures)
    _, machines = predict(client, job_id)
    shown = {name for name, machine in machines.items() if machine["seconds"]}
    assert shown == ({"T4", "host"} if simulated else {"T4"})
    for name in shown:
        assert machines[name]["speedup"] == MEASURED
        assert set(machines[name]["seconds"].values()) == {102}
    assert reason in machines["H100"]["declined"]


def test_a_simulated_machine_is_judged_as_the_host_that_ran_it(client, run, database):
    """The host may have too few operations a second for these figures, but no sleeper is as fast as a GPU."""
    job_id = submit(client, "CPU")
    with database.write() as session:
        session.scalars(select(Job).where(Job.id == job_id)).one().simulated = True
    host = next(each for each in client.get("/machine-types").json()["machineTypes"] if each["name"] == "host")
    run(1.0, flops_per_step=host["tflops"]["fp32"] * 0.8e12, bytes_per_step=1e6)
    found, machines = predict(client, job_id)
    assert found["bottleneck"]["kind"] == "compute"
    assert machines["host"]["speedup"] == MEASURED
    assert machines["H100"]["speedup"]["value"] > 1
    assert "CPU" not in " ".join(found["results"]), "it was simulated"
