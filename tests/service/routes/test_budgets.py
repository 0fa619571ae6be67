"""Budgets by HTTP: set, shown, waited for, refused, and summed."""

import html
import re

import pytest
from sqlalchemy import update
from support.live_service import make_job_body, record_requests

from core.db.database import now
from core.db.models.jobs import Attempt, Job
from core.formatting import format_cost
from service.notifications import sender


@pytest.fixture
def project(client):
    """A function that sets the budgets of a project."""
    project_id = client.post("/projects", json={"name": "vision"}).json()["id"]

    def update(*texts):
        return client.patch(f"/projects/{project_id}", json={"budgets": list(texts)})

    return update


def submit(client, **fields):
    return client.post("/jobs", json=make_job_body(project="vision", machineType="V100", **fields))


def test_a_job_reserves_its_most_and_the_next_one_waits(client, worker, project):
    worker.register()
    assert [state["left"] for state in project("5/day").json()["budgets"]] == [5]
    first = submit(client, timeLimit=3600).json()
    second = submit(client, timeLimit=5400).json()
    page = client.get("/ui/projects").text
    assert "$5.00 of $5.00 left today" in page
    job = worker.start()
    assert job.id == first["id"]
    [state] = client.get(f"/projects/{first['projectId']}").json()["budgets"]
    price = first["pricePerHour"]
    assert state["reserved"] == pytest.approx(price, abs=0.01)
    assert state["left"] == pytest.approx(5 - price, abs=0.01)
    waiting = client.get(f"/jobs/{second['id']}").json()
    assert waiting["reason"] == "budget"
    assert "the daily budget of project vision, $5.00" in waiting["message"]
    assert "when running jobs end or at" in waiting["message"]
    worker.end(job)
    assert worker.start().id == second["id"]


def test_jobs_that_are_paid_alike_are_asked_about_once(client, worker, project, database):
    worker.register()
    project("1/total")
    submit(client)
    worker.start()
    counts = []
    for array in ("1-2", "1-40"):
        submit(client, maxCost=0.5, array=array)
        with record_requests(database) as asked:
            jobs = client.get("/jobs", params={"state": "Pending"}).json()["jobs"]
        assert {job["reason"] for job in jobs} == {"budget"}
        counts.append(len(asked))
    assert (len(jobs), counts[1] - counts[0] < 40) == (42, True), counts


def test_without_a_limit_the_rest_of_the_budget_is_the_deadline(client, worker, project):
    worker.register()
    project("1/total")
    first = submit(client).json()
    job = worker.start()
    assert job.run_seconds == pytest.approx(3600 / first["pricePerHour"], abs=5)
    assert "the total budget of project vision, $1.00" in job.run_limit


def test_a_job_without_a_limit_waits_for_more_than_seconds(client, worker, project):
    worker.register()
    project("1/total")
    submit(client, maxCost=0.97)
    first, second = worker.start(), submit(client).json()["id"]
    assert client.get(f"/jobs/{second}").json()["reason"] == "budget"
    worker.end(first)
    assert worker.start().id == second


@pytest.mark.parametrize(
    ("old", "new"), [("budget", "maxCost"), ("maxDollars", "maxCost"), ("maxHours", "maxGpuHours")]
)
def test_an_old_name_of_a_ceiling_leads_to_the_new_one(client, old, new):
    refused = submit(client, **{old: 1}).json()["error"]
    assert refused["message"] == f"{old!r} is not a field here; did you mean {new!r}?"


@pytest.mark.parametrize("budget", ["2/day", "2/total"])
def test_a_job_that_never_fits_is_refused(client, project, budget):
    project(budget)
    refused = submit(client, timeLimit=360_000)
    assert refused.status_code == 402
    message = refused.json()["error"]["message"]
    assert "has $2.00 left" in message
    assert ("it resets at" in message) is budget.endswith("day")
    assert client.get("/jobs").json()["jobs"] == []


@pytest.mark.parametrize("text", ["5", "5/week", "0/day", "-1/day", "5eur/day", "nan/day"])
def test_what_is_no_budget_is_refused(project, text):
    refused = project(text)
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "budgets")


def test_keys_have_budgets_and_ceilings_need_a_price(client, settings, api_key):
    settings.sign_in.administrators.append(api_key.split("_")[1])
    key = client.post("/keys", json={"name": "ci", "budgets": ["3/month", "8gpu_hours/day"]}).json()
    assert [(state["amount"], state["unit"], state["period"]) for state in key["budgets"]] == [
        (3, "usd", "month"),
        (8, "gpu_hours", "day"),
    ]
    refused = client.post("/jobs", json=make_job_body(machineType="CPU", maxGpuHours=1))
    assert (refused.status_code, refused.json()["error"]["field"]) == (400, "maxGpuHours")


@pytest.mark.parametrize("by", ["project", "user", "key", "machine", "day"])
def test_costs_count_deleted_jobs_and_agree_in_every_form(client, worker, database, by):
    worker.register()
    names = {"project": "vision", "user": "keys without a user", "key": "tests", "machine": "V100"}
    job_id = submit(client).json()["id"]
    with database.write() as session:
        session.execute(update(Job).values(simulated=False))
    running = worker.start()
    assert [row["cost"] for row in client.get("/costs", params={"by": "day", "days": 3}).json()["rows"]][:2] == [0, 0]
    worker.end(running)
    cost = client.get(f"/jobs/{job_id}").json()["cost"]
    assert client.delete(f"/jobs/{job_id}").status_code == 204
    rows = client.get("/costs", params={"by": by, "days": 3}).json()["rows"]
    assert len(rows) == (3 if by == "day" else 1)
    assert rows[-1]["cost"] == pytest.approx(cost, abs=1e-4)
    assert [row["jobs"] for row in rows[:-1]] == [0] * (len(rows) - 1)
    assert (rows[-1]["jobs"], rows[-1]["name"]) == (1, names.get(by, rows[-1]["name"]))
    lines = client.get("/costs/csv", params={"by": by, "days": 3}).text.splitlines()
    assert lines[0] == f"{by},usd,simulated_usd,gpu_hours,jobs"
    assert [line.split(",")[0] for line in lines[1:]] == [row["name"] for row in rows]
    page = client.get("/ui/costs", params={"by": by, "days": 3}).text
    assert all(row["name"] in page for row in rows)
    assert ('<a href="/ui/projects/vision">vision</a>' in page) == (by == "project")
    week = re.search(r'data-label="Spent in 7 days"[^>]*><a[^>]*>([^<]*)', client.get("/ui/projects").text)[1]
    assert html.unescape(week) == format_cost(rows[-1]["cost"])
    today = client.get(re.search(r'Cost today</dt><dd><a href="([^"]*)"', client.get("/ui").text)[1]).text
    assert "<h1>Costs today</h1>" in today
    assert week in today


def test_what_is_spent_of_ceilings_and_budgets_is_told_once_for_each_step(client, worker, stores, database, project):
    worker.register()
    price = client.get("/machine-types").json()["machineTypes"]
    price = next(machine["pricePerHour"] for machine in price if machine["name"] == "V100")
    project(f"{1.6 * price:.4f}/total")
    receiver = {"url": "https://192.0.9.1/hook", "jobs": ["project:vision"], "events": ["job.cost", "budget.*"]}
    assert client.put("/notifications/team", json=receiver).status_code == 201
    submit(client, maxCost=price)
    job = worker.start()
    told = []
    for hours, new in [
        (0.45, []),
        (0.55, ["job.cost: has spent 50 % of its maxCost"]),
        (0.6, []),
        (0.85, ["job.cost: has spent 80 % of its maxCost", "budget.50: 50 % of the total budget of project vision"]),
    ]:
        begun = {"started_at": now(-3600 * hours)}
        with database.write() as session:
            session.execute(update(Job).where(Job.id == job.id).values(begun))
            session.execute(update(Attempt).where(Attempt.job_id == job.id).values(begun))
        sender.collect_states(stores)
        sent = [
            f"{one['event']}: {one['summary']}"
            for one in client.get("/notifications/team/deliveries").json()["deliveries"]
        ]
        assert len(sent) == len(told) + len(new)
        told += new
        for text in new:
            event, _, words = text.partition(": ")
            assert any(one.startswith(event) and words in one for one in sent), sent


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, None),
        ({"maxCost": 5}, 5),
        ({"maxGpuHours": 2}, 6.12),
        ({"maxCost": 5, "timeLimit": 3600, "maxAttempts": 3}, 5),
        ({"maxCost": 50, "timeLimit": 3600, "maxAttempts": 3}, 9.18),
    ],
)
def test_a_dry_run_says_what_a_job_costs_at_most(client, options, most):
    body = make_job_body(machineType="V100") | options
    assert client.post("/jobs?dryRun=true", json=body).json()["maxCost"] == most


@pytest.mark.parametrize("ceiling", [{"maxCost": 5}, {"maxGpuHours": 2}])
def test_a_dry_run_says_what_a_ceiling_or_a_budget_of_the_key_lets_start(client, worker, settings, api_key, ceiling):
    worker.register()
    settings.sign_in.administrators.append(api_key.split("_")[1])
    key = client.post("/keys", json={"name": "ci", "budgets": ["3/total"]}).json()["apiKey"]
    own = {"x-api-key": key}
    body = make_job_body(machineType="V100", timeLimit=1800, **ceiling)
    plan = client.post("/jobs?dryRun=true", json=body, headers=own).json()
    assert (plan["waitReason"], plan["wouldStart"]) == ("waiting_for_machine", "would start at once")
    assert client.post("/jobs", json=body, headers=own).status_code == 201
    worker.start()
    plan = client.post("/jobs?dryRun=true", json=body | {"timeLimit": 3300}, headers=own).json()
    assert plan["waitReason"] == "budget"
    assert "the total budget of key ci, $3.00" in plan["waitMessage"]
