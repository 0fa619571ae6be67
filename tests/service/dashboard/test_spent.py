"""Money spent, which every page and the API sum alike: real money, and simulated machines apart."""

import html
import re
from datetime import timedelta

import pytest
from sqlalchemy import select, update
from support.live_service import make_job_body

from core.db.database import now
from core.db.models.jobs import Attempt, Job


@pytest.fixture
def ran(client, database):
    """A function that adds a job of the project `vision` that ran for some hours, at one dollar an hour."""

    def add(hours, *, simulated=False, days_ago=0, **fields):
        job_id = client.post("/jobs", json=make_job_body(**{"project": "vision"} | fields)).json()["id"]
        with database.write() as session:
            midnight = session.scalars(select(now())).one().replace(hour=0, minute=0, second=0, microsecond=0)
            start = midnight - timedelta(days=days_ago, hours=12)
            times = {"started_at": start, "ended_at": start + timedelta(hours=hours)}
            row = {"attempt": 1, "state": "succeeded", "exit_code": 0, "finished_at": times["ended_at"]} | times
            row |= {"created_at": start, "price_per_hour": 1.0, "simulated": simulated}
            session.execute(update(Job).where(Job.id == job_id).values(row))
            session.add(Attempt(job_id=job_id, attempt=1, worker="w", host="h", claimed_at=start, **times))
        return job_id

    return add


@pytest.fixture
def text_of(signed_in_browser):
    def get(address):
        page = html.unescape(re.sub(r"<[^>]+>", " ", signed_in_browser.get(address).text))
        return re.sub(r"\s+", " ", page)

    return get


def test_each_page_has_the_same_real_money_with_deleted_jobs_and_simulated_machines_apart(client, ran, text_of):
    kept, deleted = ran(2), ran(3)
    ran(4, days_ago=20), ran(5, days_ago=50), ran(6, simulated=True)
    for job_id in (deleted, ran(1, simulated=True)):
        assert client.delete(f"/jobs/{job_id}").status_code == 204
    assert "vision" in text_of("/ui/projects")
    assert "$5.00, $7.00 simulated none" in text_of("/ui/projects"), "in 7 days, beside no limits"
    project = text_of("/ui/jobs?q=project:vision")
    assert "spent $14.00, $7.00 simulated all time" in project
    assert "Spent $9.00, $7.00 simulated in 30 days" in project
    assert "Last 7 days $5.00, $7.00 simulated" in text_of("/ui")
    assert "Cost today" not in text_of("/ui?part=live"), "no sum over all jobs at each refresh"
    assert "cost of these jobs $2.00" in text_of(f"/ui/jobs?ids={kept}"), "only of the rows that are shown"
    assert "cost of these jobs $11.00, $6.00 simulated" in text_of("/ui/jobs"), "without those that were deleted"
    for by in ("project", "user", "key", "machine", "day"):
        rows = client.get("/costs", params={"by": by, "days": 7}).json()["rows"]
        assert [sum(row[name] for row in rows) for name in ("cost", "simulatedCost", "jobs")] == pytest.approx(
            [5, 7, 4]
        )
        assert "$5.00, $7.00 simulated in all" in text_of(f"/ui/costs?by={by}&days=7")


def test_a_run_over_midnight_costs_on_each_of_its_days(client, ran):
    ran(30, days_ago=2)  # from noon three days ago to 18 o'clock two days ago
    rows = client.get("/costs", params={"by": "day", "days": 4}).json()["rows"]
    assert [(row["cost"], row["jobs"]) for row in rows] == [
        (pytest.approx(12), 1),
        (pytest.approx(18), 1),
        (0, 0),
        (0, 0),
    ]


def test_an_array_has_spent_the_cost_of_its_deleted_members(client, ran, text_of):
    member = ran(2, array="1-2")
    array = client.get(f"/jobs/{member}").json()["arrayId"]
    assert client.delete(f"/jobs/{member}").status_code == 204
    assert "spent $2.00" in text_of(f"/ui/jobs?q=array:{array}")


def test_the_week_of_a_project_leads_to_its_own_costs_by_day(ran, signed_in_browser):
    ran(2)
    ran(4, project="other")
    listed = signed_in_browser.get("/ui/projects").text
    address = html.unescape(re.search(r'href="(/ui/costs[^"]*)">\$2.00<', listed)[1])
    page = signed_in_browser.get(address).text
    assert "<h1>Costs of vision in 7 days</h1>" in page
    assert "$4.00" not in page
    assert re.search(r'<a href="/ui/projects"[^>]*aria-current="page">', page), "the marked entry of the menu"
    assert len(re.findall(r'<th scope="row" class="name">\d{4}-\d\d-\d\d<', page)) == 7
    assert "limits" in page
    assert "budgets" not in page
    csv = html.unescape(re.search(r'href="(/costs/csv[^"]*)"', page)[1])
    assert sum(float(line.split(",")[1]) for line in signed_in_browser.get(csv).text.splitlines()[1:]) == 2
    everything = signed_in_browser.get("/ui/costs").text
    assert re.search(r'<a href="/ui"[^>]*aria-current="page">', everything)
    assert signed_in_browser.get("/ui/costs?project=none").status_code == 404
