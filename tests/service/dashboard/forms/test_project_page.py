"""The page of one project, as a browser without scripts sees it."""

import re

from support.live_service import make_job_body


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
