"""The pages of a job as addresses of their own: the same header, each attempt, and no work for what is elsewhere."""

import re

import pytest
from sqlalchemy import update
from support.live_service import make_job_body

from core.db.models.jobs import Job
from core.jobs.tracking import metrics

TABS = ("", "/log", "/metrics", "/artifacts", "/config", "/events")


@pytest.fixture
def job_id(client, worker, stores):
    """A job with two attempts, each with a log and a metric."""
    made = client.post("/jobs", json=make_job_body(name="twice", maxAttempts=2, envVars={"RATE": "0.1"})).json()["id"]
    for number in (1, 2):
        with stores.database.write() as session:
            session.execute(update(Job).where(Job.id == made).values(run_after=None))
        job = worker.start()
        with stores.logs.open_writer(made, number) as log:
            log.append(f"first of {number}\nlast of {number}\n".encode(), 1000)
        row = {"job_id": made, "attempt": number, "source": "job", "offset": 1, "step": 1.0, "at": job.started_at}
        with stores.database.write() as session:
            metrics.add(session, [row | {"values": {"loss": number / 8}}])
        worker.end(job, "exit_nonzero", detail=f"exit code {number}", exit_code=number)
    return made


def header(page):
    """Return what is above the content of a tab, without the mark of the current one and the links to attempts."""
    shown = page[page.index('<div class="heading">') : page.index('<div data-part="attempts">')]
    return shown.replace(' aria-current="page"', "")


@pytest.mark.parametrize("rest", TABS)
def test_every_tab_has_the_header_and_leads_to_all_others(signed_in_browser, job_id, rest):
    page = signed_in_browser.get(f"/ui/jobs/{job_id}{rest}").text
    assert header(page) == header(signed_in_browser.get(f"/ui/jobs/{job_id}").text)
    tabs = page[page.index('aria-label="Pages of the job"') :].partition("</nav>")[0]
    assert re.findall(rf'href="/ui/jobs/{job_id}([^"]*)"', tabs) == [*TABS]
    assert re.search(rf'href="/ui/jobs/{job_id}{rest}" aria-current="page">', tabs)
    assert f'<a class="chip" href="/ui/jobs/{job_id}{rest}?attempt=1">Attempt 1' in page


def test_each_tab_shows_an_earlier_attempt(signed_in_browser, client, job_id):
    pages = {rest: signed_in_browser.get(f"/ui/jobs/{job_id}{rest}?attempt=1").text for rest in TABS}
    assert "first of 1\nlast of 1</pre>" in pages[""]
    assert re.search(r"<dt>loss</dt><dd>0\.125\b", pages[""])
    assert "0.125</td>" in pages["/metrics"]
    assert "0.25</td>" in signed_in_browser.get(f"/ui/jobs/{job_id}/metrics").text
    assert f'data-metrics="/jobs/{job_id}/metrics?maxPoints=1000&amp;attempt=1"' in pages["/metrics"]
    assert 'data-begin="1"' in pages["/log"]
    assert "Artifacts of attempt 1" in pages["/artifacts"]
    assert "<dt>Exit code</dt><dd>1</dd>" in pages["/config"]
    assert "Events of attempt 1" in pages["/events"]
    assert "<b>requeued</b>" in pages["/events"]
    assert "<b>finished</b>" not in pages["/events"]
    assert all(f'href="/ui/jobs/{job_id}/config?attempt=1"' in page for page in pages.values())
    answer = client.get(f"/jobs/{job_id}/metrics", params={"attempt": 1}).json()
    assert [series["last"] for series in answer["series"]] == [0.125]
    assert signed_in_browser.get(f"/ui/jobs/{job_id}?attempt=3").status_code == 400


def test_links_to_the_one_page_of_before_go_on_working(signed_in_browser, job_id):
    for query, rest in (
        ("line=7&find=x", "/log"),
        ("log=1&smooth=0.6", "/metrics"),
        ("axis=step&from=1&to=2", "/metrics"),
    ):
        answer = signed_in_browser.get(f"/ui/jobs/{job_id}?{query}")
        assert (answer.status_code, answer.headers["location"]) == (307, f"/ui/jobs/{job_id}{rest}?{query}")
    page = signed_in_browser.get(f"/ui/jobs/{job_id}").text
    assert f'data-lines-at="/ui/jobs/{job_id}/log"' in page
    assert 'id="metrics"' in page
    assert 'id="events"' in page


@pytest.mark.parametrize("rest", TABS)
def test_every_tab_of_a_node_shows_its_rank_and_leads_to_the_others(signed_in_browser, client, rest):
    job = client.post("/jobs", json=make_job_body(nodes=3)).json()
    shown = header(signed_in_browser.get(f"/ui/jobs/{job['id']}{rest}").text)
    [others] = re.findall(r'<a href="([^"]*)">rank 0 of 3 nodes</a>', shown)
    assert signed_in_browser.get(others.replace("&amp;", "&")).text.count("<tr data-run=") == 3
