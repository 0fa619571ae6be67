"""The lists of comparisons, schedules and sweeps, a page at a time."""

import html
import re
from datetime import timedelta

import pytest
from sqlalchemy import update
from support.live_service import make_job_body

from core.db.models.jobs import Attempt, Job
from core.jobs.tracking import metrics
from service.dashboard import comparison_pages
from service.dashboard.lists import template_pages
from service.submission.sweeps import advance

BODIES = {
    "comparisons": make_job_body(machineType="CPU,V100"),
    "schedules": make_job_body(cron="0 3 * * *"),
    "sweeps": {"space": {"x": "1,2"}, "metric": "loss:min", "method": "grid"},
}


@pytest.mark.parametrize("kind", BODIES)
def test_a_list_says_its_place_and_leads_to_the_pages_beside(signed_in_browser, client, monkeypatch, kind):
    monkeypatch.setattr(comparison_pages, "_PAGE_COMPARISONS", 2)
    monkeypatch.setattr(template_pages, "_PAGE", 2)
    for at in range(3):
        client.post(
            f"/{kind}", json=BODIES[kind] | ({} if kind == "sweeps" else {"name": f"<{at}>"})
        ).raise_for_status()

    def show(query=""):
        page = signed_in_browser.get(f"/ui/{kind}{query}").text
        place = re.search(r"data-count>([^<]*)<", page)
        return place and place[1], dict(re.findall(r'href="(\?[^"]*)" rel="(\w+)"', page)), page

    place, links, page = show()
    assert (place, links) == (f"1\N{EN DASH}2 of 3 {kind}", {"?at=3": "next"})
    if kind != "sweeps":
        assert page.index("&lt;2&gt;") < page.index("&lt;1&gt;"), "the newest first"
    assert show("?at=3")[:2] == (f"3\N{EN DASH}3 of 3 {kind}", {"?at=1": "prev"})
    assert f"No {kind} from here on." in show("?at=4")[2]


def newest_first(client, kind):
    """Return the whole list, as the API has it."""
    return client.get(f"/{kind}", params={"limit": 100}).raise_for_status().json()[kind]


def ordered(rows, value, *, descending):
    """Return the ids in an order by Python: what has no value comes last, and of equals the newest first."""
    valued = [row for row in rows if value(row) is not None]
    ranked = sorted(valued, key=value, reverse=descending)
    return [row["id"] for row in [*ranked, *(row for row in rows if value(row) is None)]]


def shown(browser, kind, sort):
    """Return the ids of all pages, from the first one to the last by its links."""
    ids, address = [], f"?sort={sort}"
    while address:
        page = browser.get(f"/ui/{kind}{address}").raise_for_status().text
        ids += re.findall(rf'<th scope="row" class="name"><a href="/ui/{kind}/(\w+)"', page)
        links = {rel: html.unescape(url) for url, rel in re.findall(r'href="(\?[^"]*)" rel="(\w+)"', page)}
        address = links.get("next")
    return ids


def check_orders(browser, client, kind, values):
    """Compare the pages of each order, in both directions, and see that other columns offer none."""
    rows = newest_first(client, kind)
    assert len(rows) > 4, "more than two pages"
    offered = re.findall(r'data-sort="(\w+)"', browser.get(f"/ui/{kind}").text)
    assert {*offered} == values.keys()
    for name, value in values.items():
        for mark in ("", "-"):
            found = shown(browser, kind, f"{mark}{name}")
            assert found == ordered(rows, value, descending=bool(mark)), f"{mark}{name}"


@pytest.fixture
def short_pages(monkeypatch):
    monkeypatch.setattr(comparison_pages, "_PAGE_COMPARISONS", 2)
    monkeypatch.setattr(template_pages, "_PAGE", 2)


@pytest.mark.usefixtures("short_pages")
def test_sweeps_are_ordered_over_all_pages(signed_in_browser, client, worker, stores):
    """Also by what is computed: the best value, the time and the cost of the trials."""
    worker.register()
    for at, (goal, values) in enumerate(
        [("min", (5, 2)), ("max", (3, 9)), ("min", ()), ("max", (2, 1)), ("min", (7,))]
    ):
        body = make_job_body(space={"x": "1,2"}, metric=f"loss:{goal}", method="grid", trials=2, parallel=2)
        name = {} if at == 2 else {"name": f"{'bBaAc'[at]}-{at}"}
        made = client.post("/sweeps", json=body | name).raise_for_status().json()
        for value in values:
            job = worker.start()
            with stores.database.write() as session:
                metrics.add(session, [report(job, value)])
                began = [job.created_at - timedelta(**{unit: value}) for unit in ("hours", "minutes")]
                session.execute(update(Attempt).where(Attempt.job_id == job.id).values(started_at=began[0]))
                session.execute(update(Job).where(Job.id == job.id).values(started_at=began[1]))
            worker.end(job)
        advance(stores, made["id"])
        for trial in made["trials"][len(values) :]:
            client.post(f"/jobs/{trial['jobId']}/stop").raise_for_status()
    programs = client.post("/sweeps", json=BODIES["sweeps"]).raise_for_status().json()
    client.post(f"/sweeps/{programs['id']}/trials", json={"key": "k" * 32}).raise_for_status()
    check_orders(
        signed_in_browser,
        client,
        "sweeps",
        {
            "name": lambda row: row["name"].lower(),
            "best": lambda row: row["best"] and row["best"]["value"],
            "time": lambda row: row["hours"],
            "cost": lambda row: row["dollars"],
            "jobs": lambda row: sum(row["counts"].values()),
            "created": lambda row: row["createdAt"],
        },
    )


def report(job, value):
    row = {"job_id": job.id, "attempt": 1, "source": "job", "offset": 1, "step": 3.0, "at": job.created_at}
    return row | {"values": {"loss": value}}


@pytest.mark.usefixtures("short_pages")
def test_schedules_are_ordered_over_all_pages(signed_in_browser, client, add_key):
    _, bob = add_key("Bob")
    for at, cron in enumerate(["0 3 * * *", "5 1 * * *", "0 0 1 1 *", "7 9 * * *", "30 2 * * 1"]):
        body = make_job_body(cron=cron, **({} if at == 1 else {"name": f"{'bBaAc'[at]}-{at}"}))
        headers = {"headers": bob} if at == 3 else {}
        made = client.post("/schedules", json=body, **headers).raise_for_status().json()
        for _ in range(at % 3):
            client.post(f"/schedules/{made['id']}/trigger").raise_for_status()
        if at == 2:
            client.post(f"/schedules/{made['id']}/suspend").raise_for_status()
    oldest = newest_first(client, "schedules")[-1]
    client.post(f"/schedules/{oldest['id']}/trigger").raise_for_status()
    check_orders(
        signed_in_browser,
        client,
        "schedules",
        {
            "name": lambda row: row["name"].lower(),
            "times": lambda row: row["cron"],
            "next": lambda row: None if row["suspended"] else row["nextTimes"][0],
            "last": lambda row: row["lastJob"] and row["lastJob"]["createdAt"],
            "owner": lambda row: (row["owner"] or row["ownerKey"]).lower(),
        },
    )


@pytest.mark.usefixtures("short_pages")
def test_comparisons_are_ordered_over_all_pages_by_what_is_not_measured(signed_in_browser, client):
    for at, machines in enumerate(["CPU,V100", "CPU,V100,P100", "CPU,P100", "CPU,V100,P100,K80", "CPU,K80"]):
        body = make_job_body(machineType=machines, **({} if at == 1 else {"name": f"{'bBaAc'[at]}-{at}"}))
        client.post("/comparisons", json=body).raise_for_status()
    values = {
        "name": lambda row: row["name"] and row["name"].lower(),
        "jobs": lambda row: row["jobs"],
        "created": lambda row: row["createdAt"],
    }
    check_orders(signed_in_browser, client, "comparisons", values)
    refused = signed_in_browser.get("/ui/comparisons?sort=cost")
    assert refused.status_code == 400
    assert "Columns: name, jobs, created." in html.unescape(refused.text)
