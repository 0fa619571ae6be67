"""The pages of projects and machine types, and the links to them."""

import re

import pytest
from support.live_service import make_job_body


def test_every_page_leads_to_the_others(signed_in_browser):
    for name, title in (("jobs", "Jobs"), ("projects", "Projects"), ("machines", "Machines")):
        page = signed_in_browser.get(f"/ui/{name}").text
        assert re.findall(r'<a href="(/ui/\w+)"(?: aria-current="page")?>\w+</a>', page)[:4] == [
            "/ui/jobs",
            "/ui/comparisons",
            "/ui/projects",
            "/ui/machines",
        ]
        assert f'<a href="/ui/{name}" aria-current="page">{title}</a>' in page
        assert page.count("aria-current") == 1
        assert 'data-live="yes"' in page


def test_projects_are_shown_with_their_jobs_and_limits(signed_in_browser, client):
    assert "No projects yet" in signed_in_browser.get("/ui/projects").text
    for _ in range(2):
        client.post("/jobs", json=make_job_body(project="a <b>"))
    project = client.get("/projects").json()["projects"][0]["id"]
    client.patch(f"/projects/{project}", json={"maxRunning": 3, "keepLogsDays": 1, "maxStoredMb": 2048})
    page = signed_in_browser.get("/ui/projects").text
    assert '<a href="/ui/projects/a%20%3Cb%3E">a &lt;b&gt;</a>' in page
    assert '<a class="plain" href="/ui/jobs?project=a+%3Cb%3E">2</a>' in page
    for text in ("3 at once, 2,048 MiB stored", ">1 day</td>", ">forever</td>"):
        assert text in page
    assert re.search(r'data-label="Waiting" class="number">2<', page)


def test_machines_are_shown_with_their_price_and_those_offered_come_first(signed_in_browser, client, worker):
    worker.register()
    page = signed_in_browser.get("/ui/machines").text
    listed = client.get("/machine-types").json()["machineTypes"]
    names = re.findall(r'<a href="/ui/jobs\?machineType=[^"]+">([^<]+)</a>', page)
    assert sorted(names) == sorted(one["name"] for one in listed)
    offered = {one["name"] for one in listed if one["available"]}
    assert offered
    assert set(names[: len(offered)]) == offered
    assert "$8.00" in page


@pytest.mark.parametrize("address", ["/ui/projects", "/ui/machines"])
def test_a_visitor_is_asked_to_sign_in(anonymous_browser, address):
    assert anonymous_browser.get(address).headers["location"].startswith("/ui/login")
