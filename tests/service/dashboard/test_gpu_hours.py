"""The cost of jobs on machines without a price, which is the hours of their GPUs."""

import re
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from support.live_service import make_job_body

from core.db.database import now
from core.db.models.jobs import Attempt, Job


@pytest.fixture
def run_free(database):
    """A function that has jobs run for 45 minutes on two GPUs that cost nothing."""

    def run(*job_ids):
        with database.write() as session:
            ended = session.scalars(select(now())).one()
            times = {"started_at": ended - timedelta(minutes=45), "ended_at": ended}
            free = {"price_per_hour": 0.0, "gpu_count": 2, "machine_type": "A100", "state": "succeeded"}
            row = {"attempt": 1, "finished_at": ended} | times | free
            session.execute(update(Job).where(Job.id.in_(job_ids)).values(row))
            ran = {"attempt": 1, "worker": "w1", "host": "here", "claimed_at": ended} | times
            session.add_all(Attempt(job_id=job_id, **ran) for job_id in job_ids)

    return run


def _text(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text))


def _members(client, array):
    return [job["id"] for job in client.get("/jobs", params={"array": array}).json()["jobs"]]


def test_a_job_on_a_free_machine_costs_gpu_hours(client, signed_in_browser, run_free):
    first, second, third = _members(client, client.post("/jobs", json=make_job_body(array="0-2")).json()["arrayId"])
    paid = client.post("/jobs", json=make_job_body(name="paid")).json()["id"]
    run_free(first, second)
    job = client.get(f"/jobs/{first}").json()
    assert (job["cost"], job["gpuHours"]) == (0, 1.5)
    assert [client.get(f"/jobs/{one}").json()["gpuHours"] for one in (third, paid)] == [0, 0]
    (folded,) = (one for one in client.get("/jobs?fold=true").json()["jobs"] if one["arrayId"])
    assert (folded["cost"], folded["gpuHours"]) == (0, 3)
    assert "Cost 1.5 GPU hours" in _text(signed_in_browser.get(f"/ui/jobs/{first}"))
    assert "3 GPU hours" in _text(signed_in_browser.get("/ui/jobs?fold=1"))
    assert "Spent 3 GPU hours (A100) in 30 days" in _text(signed_in_browser.get("/ui/jobs?q=project:default&charts=1"))
    assert re.search(r"Cost today \S+ GPU hours?\b", _text(signed_in_browser.get("/ui"))), "since midnight alone"


def test_a_sweep_on_free_machines_costs_gpu_hours(client, signed_in_browser, run_free):
    body = make_job_body(space={"lr": "log:1e-5..1e-1"}, metric="loss:min", trials=2, parallel=2)
    sweep = client.post("/sweeps", json=body).json()["id"]
    run_free(*_members(client, sweep))
    made = client.get(f"/sweeps/{sweep}").json()
    assert (made["dollars"], made["gpuHours"]) == (0, pytest.approx(3, abs=0.01))
    for page in ("/ui/sweeps", f"/ui/jobs?q=sweep:{sweep}&charts=1"):
        assert "3 GPU hours" in _text(signed_in_browser.get(page)), page


def test_rows_of_a_comparison_on_free_machines_have_gpu_hours(client, signed_in_browser, train, database):
    made = client.post("/comparisons", json=make_job_body(machineType="CPU,V100", metric="accuracy", target=0.4)).json()
    with database.write() as session:
        session.execute(update(Job).values(price_per_hour=0.0))
        session.execute(update(Job).where(Job.machine_type == "V100").values(gpu_count=2))
    for _ in range(2):
        train(1.0, [0.1, 0.5, 0.9])
    cpu, gpu = client.get(f"/comparisons/{made['id']}").json()["rows"]
    assert (cpu["gpuHours"], cpu["gpuHoursToTarget"], cpu["gpuHoursPer1000Steps"]) == (0, 0, 0)
    assert gpu["gpuHours"] == pytest.approx(2 * gpu["seconds"]["median"] / 3600)
    assert gpu["gpuHoursToTarget"] == pytest.approx(2 * gpu["secondsToTarget"]["median"] / 3600)
    assert gpu["gpuHoursPer1000Steps"] == pytest.approx(2 * 1000 / gpu["stepsPerSecond"]["median"] / 3600)
    assert "&lt;0.01 GPU hours" in _text(signed_in_browser.get(f"/ui/comparisons/{made['id']}"))
