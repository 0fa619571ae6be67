"""The page of one project, as a browser without scripts sees it."""

import re
from datetime import UTC, datetime, timedelta

from sqlalchemy import update
from support.live_service import make_job_body

from core.db.models.jobs import Attempt, Job


def words(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page.text))


def test_a_project_shows_its_jobs_limits_spending_and_secrets(signed_in_browser, client, train):
    client.post("/jobs", json=make_job_body(project="a/b <c>", name="trained"))
    train(10.0, [0.5, 0.75])
    client.post("/jobs", json=make_job_body(project="a/b <c>", name="waits"))
    client.post("/jobs", json=make_job_body(project="other", name="elsewhere"))
    project = client.get("/projects").json()["projects"][0]["id"]
    client.patch(f"/projects/{project}", json={"maxRunning": 3, "keepLogsDays": 1, "maxStoredMb": 100})
    client.put(f"/projects/{project}/secrets/OWN_TOKEN", json={"value": "hush"})
    listed = signed_in_browser.get("/ui/projects").text
    address = re.search(r'href="(/ui/projects/a[^"]+)"', listed)[1]
    page = signed_in_browser.get(signed_in_browser.get(address).headers["location"])
    assert signed_in_browser.get(f"/ui/projects/{project}").status_code == 307
    assert "trained" in page.text
    assert "waits" in page.text
    assert "elsewhere" not in page.text
    assert "<c>" not in page.text
    shown = words(page)
    for text in ("0 of 3 at once", "left of 100 MiB", "1 day set by the project", "OWN_TOKEN", "2 jobs"):
        assert text in shown
    assert "hush" not in page.text
    assert 'href="/ui/jobs/new?project=a%2Fb+%3Cc%3E"' in page.text


def test_spending_is_the_cost_of_jobs_submitted_in_the_last_30_days(signed_in_browser, client, database):
    start = datetime(2026, 3, 5, tzinfo=UTC)
    run = {"started_at": start, "ended_at": start + timedelta(hours=2), "price_per_hour": 1.5, "simulated": False}
    early = run | {"created_at": start - timedelta(days=400)}
    for name, values in (("p", run), ("p", early), ("other", run)):
        made = client.post("/jobs", json=make_job_body(project=name)).json()["id"]
        with database.write() as session:
            session.execute(update(Job).where(Job.id == made).values(**values, attempt=1))
            times = {name: run[name] for name in ("started_at", "ended_at")}
            session.add(Attempt(job_id=made, attempt=1, worker="w", host="h", claimed_at=start, **times))
    client.post("/jobs", json=make_job_body(project="p", name="waits"))
    page = signed_in_browser.get("/ui/jobs?q=project:p&charts=1")
    assert "Spent $3.00 for jobs of the last 30 days Running" in words(page)
    assert 'title="All attempts of the jobs submitted in the last 30 days, at the list price">Spent' in page.text
