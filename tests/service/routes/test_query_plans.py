"""Query plans: no read and no step of a job looks at every row of a table that grows with each job."""

import re
from datetime import datetime

import pytest
from fastapi.routing import iter_route_contexts
from sqlalchemy import Connection
from support.live_service import make_job_body, record_statements

from service.submission.schedules import run_due
from service.submission.sweeps import advance

LARGE = {"jobs", "attempts", "events", "metrics"}
STREAMS = {"/jobs/{job_id}/logs"}
"""Routes that are asked for one page instead of their stream."""
FILTERS = (
    {},
    {"state": "failed"},
    {"state": ["queued", "failed"]},
    {"machineType": "CPU"},
    {"name": "a"},
    {"project": "default"},
    {"since": "2026-01-01T00:00:00Z"},
    {"after": "5"},
    {"q": "state:failed"},
    {"q": "project:default machine:CPU"},
    {"q": "accuracy>0.5"},
    {"q": "array:a00000000000z1"},
    {"q": "schedule:sc1"},
    {"q": "sweep:s1"},
)
LIMITED = re.compile(r"ORDER BY jobs\.seq DESC LIMIT|FROM \(SELECT jobs\.seq AS seq FROM jobs WHERE .* LIMIT")
"""Reads from one end on, until a page is full, or as many jobs as are counted at most."""
IN_ORDER = ("SCAN jobs", "SCAN jobs USING INDEX ix_jobs_project_id_kept")
"""Steps of such reads; the index has all that a count needs."""
OF_LIVE_JOBS = (
    "INDEX ix_jobs_active",
    "INDEX ix_jobs_attempted",
    "INDEX ix_jobs_queue",
    "INDEX ix_jobs_waiting_pool",
    "INDEX ix_events_to_notify",
)
"""Partial indexes as long as the queue, or what waits to be told, not as the past."""
COUNTS_ALL = "SELECT jobs.project_id, count(*) AS jobs FROM jobs WHERE jobs.deleted_at IS NULL GROUP BY"
"""Numbers of jobs by project, which are kept for half a minute."""


def scans(connection: Connection, statement: str, parameters: object) -> list[str]:
    """Return the steps of a statement's plan that read a whole large table."""
    plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
    whole = [row.detail for row in plan if re.match(rf"SCAN ({'|'.join(LARGE)})\b", row.detail)]
    if LIMITED.search(" ".join(statement.split())):
        whole = [step for step in whole if step not in IN_ORDER]
    return [step for step in whole if not step.endswith(OF_LIVE_JOBS)]


def assert_no_scans(database, statements):
    read = [one for one in statements if one[0].lstrip().startswith(("SELECT", "UPDATE", "DELETE", "WITH"))]
    assert read
    with database.engine.connect() as connection:
        found = {" ".join(s.split()): scans(connection, s, parameters) for s, parameters in read}
    assert [f"{steps}: {s}" for s, steps in found.items() if steps and not s.startswith(COUNTS_ALL)] == []


@pytest.fixture
def job_id(client, worker):
    worker.register()
    made = client.post("/jobs", json=make_job_body()).json()["id"]
    worker.start()
    return made


def paths(app):
    found = {route.path_format for route in iter_route_contexts(app.routes) if "GET" in (route.methods or ())}
    return sorted(path for path in found if not path.startswith(("/ui/static", "/client", "/openapi")))


def test_no_route_reads_all_jobs(app, client, database, job_id):
    schedule_id = client.post("/schedules", json=make_job_body(cron="0 3 * * *")).json()["id"]
    values = {"job_id": job_id, "project_id": client.get(f"/jobs/{job_id}").json()["projectId"]}
    tried = make_job_body(space={"a": "1,2"}, method="grid")
    values |= {"schedule_id": schedule_id, "sweep_id": client.post("/sweeps", json=tried).json()["id"]}
    with record_statements(database) as statements:
        for path in paths(app):
            address = re.sub(r"\{(\w+)(:\w+)?\}", lambda found: values.get(found[1], "x"), path)
            answer = client.get(address, params={"line": 0} if path in STREAMS else {})
            assert answer.status_code < 500, (path, answer.text)
    assert_no_scans(database, statements)


@pytest.mark.parametrize("policy", ["queue", "skip", "replace"])
def test_no_schedule_reads_all_jobs(client, database, stores, policy):
    made = client.post("/schedules", json=make_job_body(cron="0 3 * * *", onOverlap=policy)).json()
    with record_statements(database) as statements:
        for time in made["nextTimes"][:3]:
            assert run_due(stores, datetime.fromisoformat(time)) == 1
        assert client.get("/schedules").json()["schedules"][0]["lastJob"] is not None
    assert_no_scans(database, statements)


def test_no_sweep_reads_all_jobs(client, database, stores):
    with record_statements(database) as statements:
        body = make_job_body(space={"a": "1..9"}, metric="m:min", stop="asha", maxCost=1)
        made = client.post("/sweeps", json=body).json()
        assert client.get("/sweeps").json()["sweeps"][0]["counts"] == {"running": 4}
        advance(stores, made["id"])
    assert_no_scans(database, statements)


@pytest.mark.parametrize("page", ["/jobs", "/ui/jobs"])
@pytest.mark.parametrize("wanted", FILTERS, ids=str)
@pytest.mark.usefixtures("job_id")
def test_no_filter_reads_all_jobs(client, database, page, wanted):
    with record_statements(database) as statements:
        assert client.get(page, params=wanted).status_code < 500
    assert_no_scans(database, statements)


def test_no_step_of_a_job_reads_all_jobs(client, database, worker):
    worker.register()
    with record_statements(database) as statements:
        waiting = [client.post("/jobs", json=make_job_body()).json()["id"] for _ in range(2)]
        client.get(f"/jobs/{waiting[1]}")
        worker.end(worker.start())
        client.post(f"/jobs/{waiting[1]}/stop")
        client.delete(f"/jobs/{waiting[0]}")
    assert_no_scans(database, statements)


def test_counts_and_last_failures_do_not_read_every_job_of_a_state(client, database, job_id):
    project = client.get(f"/jobs/{job_id}").json()["projectId"]
    with record_statements(database) as statements:
        for path in ("/ui", "/metrics", "/projects", f"/projects/{project}"):
            assert client.get(path).status_code < 400
    with database.engine.connect() as connection:
        plans = [
            row.detail
            for statement, parameters in statements
            if " FROM jobs" in " ".join(statement.split())
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        ]
    for index in ("ix_jobs_failed", "ix_jobs_finished_at", "ix_jobs_project_id_kept", "ix_jobs_waiting_pool"):
        assert any(f"INDEX {index}" in step for step in plans), (index, plans)


@pytest.mark.parametrize(
    "wanted", [{"q": "state:failed machine:CPU"}, {"state": "failed", "machineType": "CPU"}], ids=str
)
@pytest.mark.usefixtures("job_id")
def test_failed_jobs_of_a_common_machine_type_are_found_among_failed_jobs(client, database, monkeypatch, wanted):
    monkeypatch.setattr("core.jobs.queries.FEW_JOBS", 1)
    with record_statements(database) as statements:
        assert client.get("/jobs", params=wanted).status_code == 200
    assert "INDEX ix_jobs_state_seq (state=?)" in plans(database, statements, "ORDER BY jobs.seq DESC")
    monkeypatch.undo()
    with record_statements(database) as statements:
        client.get("/jobs", params=wanted)
    assert "INDEX ix_jobs_machine_type_seq (machine_type=?)" in plans(database, statements, "ORDER BY jobs.seq DESC")


def test_a_claim_counts_the_running_members_of_an_array_from_the_index_of_running_jobs(client, database, worker):
    worker.register()
    client.post("/jobs", json=make_job_body(array="0-3%2")).raise_for_status()
    with record_statements(database) as statements:
        worker.start()
    assert "INDEX ix_jobs_array_owned (array_id=?)" in plans(database, statements, "array_limit")


def plans(database, statements, part):
    """Return the plans of the statements that contain `part`."""
    with database.engine.connect() as connection:
        return " ".join(
            row.detail
            for statement, parameters in statements
            if part in " ".join(statement.split())
            for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters)
        )
