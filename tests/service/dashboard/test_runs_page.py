"""The page that compares runs, without scripts."""

import html
import re

import pytest
from support.live_service import make_job_body

from core.jobs.tracking import metrics


@pytest.fixture
def runs(client, worker, database):
    """Three ended runs that differ in their learning rates, with a loss and an accuracy of each."""
    worker.register()
    ids = []
    for rate, loss in (("0.01", 0.5), ("0.03", 0.2), ("0.1", 0.9)):
        body = make_job_body(name=f"lr {rate}", command=f"train --lr {rate}", envVars={"RATE": rate}, tags=["sweep"])
        ids.append(client.post("/jobs", json=body).json()["id"])
        job = worker.start()
        row = {"job_id": job.id, "attempt": 1, "source": "job", "at": job.created_at, "offset": 0, "step": 0}
        with database.write() as session:
            metrics.add(session, [row | {"values": {"val/loss": loss, "accuracy": 1 - loss}}])
        worker.end(job, exit_code=0)
    return ids


def columns(page):
    """The texts of each column by its title; of the best cells with a star."""
    titles = re.findall(r'<th scope="col"[^>]*>(?:<button[^>]*>)?([^<]*)', page)[1:]
    rows = re.findall(r"<tr data-run.*?</tr>", page, re.DOTALL)
    cells = [re.findall(r'<t[dh] (?:scope="row" )?([^>]*)>(.*?)</t[dh]>', row, re.DOTALL)[1:] for row in rows]
    shown = [
        [html.unescape(re.sub(r"<[^>]+>", "", text)).strip() + "*" * ("best" in head) for head, text in row]
        for row in cells
    ]
    return dict(zip(titles, zip(*shown, strict=True), strict=True))


def test_runs_are_rows_and_what_differs_and_metrics_are_columns(signed_in_browser, runs):
    of_ids = columns(signed_in_browser.get("/ui/compare", params={"ids": ",".join(runs)}).text)
    assert of_ids["RATE"] == ("0.01", "0.03", "0.1")
    assert of_ids["val/loss"] == ("0.5", "0.2*", "0.9"), "the lowest loss is the best"
    assert of_ids["accuracy"] == ("0.5", "0.8*", "0.1")
    assert not {"tags", "machineType", "project"} & of_ids.keys(), "the runs have them in common"
    of_query = columns(signed_in_browser.get("/ui/compare", params={"q": "tag:sweep"}).text)
    assert {name: values[::-1] for name, values in of_query.items()} == of_ids


def test_the_curves_of_runs_are_read_together(signed_in_browser, client, runs):
    found = signed_in_browser.get("/ui/compare/series", params={"ids": ",".join([*runs, "jnone"])}).json()
    assert found.keys() == set(runs)
    values = {one["name"]: one["last"] for one in found[runs[1]]["metrics"]["series"]}
    assert values == {"val/loss": 0.2, "accuracy": 0.8}
    assert found[runs[1]]["began"] > 0
    client.delete(f"/jobs/{runs[0]}")
    assert signed_in_browser.get("/ui/compare/series", params={"ids": runs[0]}).json() == {}


def test_no_runs_and_too_many_are_said(signed_in_browser):
    assert "Choose jobs in the list" in signed_in_browser.get("/ui/compare?ids=jnone").text
    many = signed_in_browser.get("/ui/compare", params={"ids": ",".join(f"j{number}" for number in range(201))})
    assert (many.status_code, "200 can be compared at once" in many.text) == (400, True)
