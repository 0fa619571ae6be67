"""Estimated starts of waiting jobs, and of jobs in dry runs."""

from datetime import UTC, datetime

import pytest
from sqlalchemy import update
from support.live_service import make_job_body

from core.db.database import now
from core.db.models.jobs import Job, Project


def test_a_waiting_job_has_an_estimate_of_its_start_from_those_that_ended(client, worker, database):
    worker.register()
    for _ in range(3):
        client.post("/jobs", json=make_job_body())
        worker.end(worker.start(), exit_code=0)
    with database.write() as session:
        session.connection().exec_driver_sql(
            "UPDATE jobs SET claimed_at = '2026-01-01 00:00:00.000000', finished_at = '2026-01-01 01:00:00.000000'"
        )
    client.post("/jobs", json=make_job_body())
    worker.start()
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    job = client.get(f"/jobs/{job_id}").json()
    left = (datetime.fromisoformat(job["estimatedStartAt"]) - datetime.now(UTC)).total_seconds()
    assert left == pytest.approx(3600, abs=30)
    assert [one["estimatedStartAt"] is not None for one in client.get("/jobs").json()["jobs"]] == [True] + [False] * 4


def test_a_dry_run_says_when_the_job_would_start(client, worker, database):
    def would_start(**options):
        return client.post("/jobs?dryRun=true", json=make_job_body(**options)).json()["wouldStart"]

    assert would_start() == (
        "cannot start: No running worker offers this machine type. Start one with `gradient-server worker`."
    )
    worker.register()
    assert would_start() == "would start at once", "nothing has to be known of other jobs"
    client.post("/jobs", json=make_job_body())
    job = worker.start()
    assert would_start() is None, "of jobs that end nothing is known"
    assert would_start(after=[job.id]) is None
    for _ in range(3):
        worker.end(job, exit_code=0)
        client.post("/jobs", json=make_job_body())
        job = worker.start()
    with database.write() as session:
        ended = update(Job).where(Job.finished_at.is_not(None))
        session.execute(ended.values(claimed_at=now(-1240), finished_at=now(-1000)))
    assert would_start() == "would start in about 4 minutes"
    with database.write() as session:
        session.execute(update(Project).values(max_running=1))
        session.execute(update(Job).values(claimed_at=now(-9000)))
    assert would_start().startswith("would wait: The job would exceed the project's limit")
