"""Parameters of jobs on the pages: as columns, of a job, in the form, and names that no job has."""

import re

import pytest
from support.job_table import columns
from support.live_service import make_job_body


@pytest.fixture
def sweep(client):
    for fields in ({"params": {"lr": 0.01, "opt": "adam", "amp": True}}, {"command": "t --lr 1e-3 --opt sgd --bs 32"}):
        client.post("/jobs", json=make_job_body(**fields)).raise_for_status()


@pytest.mark.usefixtures("sweep")
def test_parameters_are_columns_and_on_the_page_of_a_job(client, signed_in_browser):
    listed = signed_in_browser.get("/ui/jobs?cols=params.lr&cols=params.opt&sort=params.lr").text
    assert columns(listed)["lr"] == ("0.001", "0.01")
    assert columns(listed)["opt"] == ("sgd", "adam")
    assert re.search(r'aria-sort="ascending"[^>]*><a data-stay href="/ui/jobs\?sort=-params.lr', listed)
    assert 'name="cols" value="params.bs">' in listed
    given = client.get("/jobs", params={"q": "opt=adam"}).json()["jobs"][0]["id"]
    page = signed_in_browser.get(f"/ui/jobs/{given}").text
    assert "<dt><code>opt</code></dt><dd><code>adam</code></dd>" in page
    form = signed_in_browser.get(f"/ui/jobs/new?from={given}").text
    assert "lr=0.01\nopt=adam\namp=true</textarea>" in form


@pytest.mark.usefixtures("sweep")
def test_a_search_for_a_name_that_no_job_has_offers_what_finds_jobs(signed_in_browser):
    page = signed_in_browser.get("/ui/jobs", params={"q": "state:pending lx=0.01"}).text
    assert "No job has a parameter or metric" in page
    assert '<a class="chip" href="/ui/jobs?q=state%3Apending+lr%3D0.01">lr=0.01</a>' in page
    assert 'href="/ui/jobs?q=state%3Apending+%22lx%3D0.01%22"' in page
    assert "No job has" not in signed_in_browser.get("/ui/jobs", params={"q": "lr=77"}).text
