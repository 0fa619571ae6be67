"""Comparisons in the table of jobs: one row in place of the jobs that each has submitted, and a beginning of it."""

import html
import re

import pytest
from support.live_service import make_job_body

LIST = "/ui/jobs"


@pytest.fixture
def compared(client, train):
    """The id of a comparison of two ended jobs and a third that waits; before it a job, after it another."""
    client.post("/jobs", json=make_job_body(name="before"))
    train(1, [0.4])
    body = make_job_body(machineType="CPU,V100", name="digits", metric="accuracy", target=0.8)
    made = client.post("/comparisons", json=body).json()["id"]
    train(2, [0.5, 0.8, 0.9])
    train(1, [0.5, 0.7, 0.85])
    client.post(f"/comparisons/{made}/repeats", json={"machineTypes": ["V100"]}).raise_for_status()
    client.post("/jobs", json=make_job_body(name="after"))
    return made


def rows(page):
    """The text of each row of the table of jobs."""
    found = re.findall(r"<tr.*?</tr>", re.search(r"<tbody>(.*)</tbody>", page, re.DOTALL)[1], re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in found]


def test_the_jobs_of_a_comparison_are_one_row_with_its_verdict_time_and_cost(
    signed_in_browser, client, compared, train
):
    page = signed_in_browser.get(LIST).text
    after, row, before = rows(page)
    assert after.startswith("after")
    assert before.startswith("before")
    assert row.startswith("▸ digits comparison of 3 Pending 2/3")
    assert "CPU, V100" in row
    assert " 0.9 " in row, "the best accuracy"
    assert f'href="/ui/comparisons/{compared}"' in page
    assert "3 rows" in page
    assert ">Pending 2</a>" in page, "of all jobs"
    opened = signed_in_browser.get(LIST, params={"open": compared}).text
    assert len(rows(opened)) == 6
    assert len(re.findall('class="member"', opened)) == 3
    train(1, [0.6, 0.7, 0.8])
    verdict = client.get(f"/comparisons/{compared}").json()["verdict"]
    assert verdict in rows(signed_in_browser.get(LIST).text)[1], "all have ended"


@pytest.mark.parametrize(
    "query", [{"q": "machine:CPU"}, {"sort": "cost"}, {"q": "state:succeeded"}, {"q": "comparison:{}"}, {"ids": "{}"}]
)
def test_what_the_jobs_of_a_comparison_differ_in_shows_them(signed_in_browser, compared, query):
    given = {name: value.format(compared) for name, value in query.items()}
    assert "comparison of" not in "".join(rows(signed_in_browser.get(LIST, params=given).text))


def test_jobs_stay_in_the_list_when_their_comparison_is_deleted(signed_in_browser, client, compared):
    client.delete(f"/comparisons/{compared}")
    assert sum(row.startswith("digits") for row in rows(signed_in_browser.get(LIST).text)) == 3


def test_jobs_that_were_compared_later_stay_rows(signed_in_browser, client):
    ids = [client.post("/jobs", json=make_job_body(name=f"run {at}")).json()["id"] for at in range(2)]
    signed_in_browser.post(f"{LIST}/actions", data={"action": "machines", "ids": ids})
    assert len(rows(signed_in_browser.get(LIST).text)) == 2


def test_an_action_on_the_row_is_one_on_each_job(signed_in_browser, client, compared):
    sent = {"action": "tag", "tag": "mine", "ids": [compared], "back": LIST}
    assert "Tagged: 3 jobs" in signed_in_browser.post(f"{LIST}/actions", data=sent, follow_redirects=True).text
    assert len(client.get("/jobs?tag=mine").json()["jobs"]) == 3


def test_a_comparison_is_a_beginning_of_the_workspace(signed_in_browser, compared):
    page = signed_in_browser.get(f"/ui/comparisons/{compared}").text
    address = html.unescape(re.search(r'id="runs" href="([^"]+)"', page)[1])
    workspace = signed_in_browser.get(address).text
    assert "<h1>digits</h1>" in workspace
    assert f'id="verdict" class="plain muted" href="/ui/comparisons/{compared}"' in workspace
    assert len(rows(workspace)) == 3
    assert 'data-choice="Machine"' in workspace, "its jobs are grouped by machine"
