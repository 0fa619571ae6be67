"""The page that compares runs, without scripts."""

import html
import json
import math
import re
from datetime import UTC, datetime, timedelta

import pytest
from support.job_table import columns
from support.live_service import make_job_body, record_requests

from core.jobs.tracking import metrics
from service.dashboard import runs_page


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


def test_runs_are_rows_and_what_differs_and_metrics_are_columns(signed_in_browser, runs):
    moved = signed_in_browser.get("/ui/compare", params={"ids": ",".join(runs)}, follow_redirects=False)
    of_ids = columns(signed_in_browser.get(moved.headers["location"]).text)
    assert of_ids["RATE"] == ("0.01", "0.03", "0.1")
    assert of_ids["val/loss"] == ("0.5", "0.2*", "0.9"), "the lowest loss is the best"
    assert of_ids["accuracy"] == ("0.5", "0.8*", "0.1")
    assert not {"tags", "Machine", "Project"} & of_ids.keys(), "the runs have them in common"
    page = signed_in_browser.get("/ui/jobs", params={"charts": "1", "q": "tag:sweep"}).text
    assert {name: values[::-1] for name, values in columns(page).items()} == of_ids
    assert re.search(r"best accuracy <a[^>]*>0.8<", page)
    assert ">Succeeded 3</a>" in page


@pytest.mark.usefixtures("runs")
def test_the_best_of_one_page_is_not_said_to_be_the_best(signed_in_browser, monkeypatch):
    whole = signed_in_browser.get("/ui/jobs").text
    assert re.search(r"best accuracy <a[^>]*>0.8<", whole)
    assert 'title="the best last value: 0.8"' in whole
    monkeypatch.setattr("service.dashboard.runs_page.PAGE_JOBS", 2)
    part = signed_in_browser.get("/ui/jobs").text
    assert 'id="best"' not in part
    assert 'title="the best last value of this page: 0.8"' in part


def test_a_metric_that_repeats_a_parameter_has_no_column(signed_in_browser, client, train):
    ids = [client.post("/jobs", json=make_job_body(params={"rate": rate})).json()["id"] for rate in (0.1, 0.2)]
    for rate in (0.1, 0.2):
        train(1, [{"accuracy": 1 - rate, "learning_rate": rate}])
    query = {"ids": ",".join(ids), "charts": "1"}
    assert not {"learning_rate"} & columns(signed_in_browser.get("/ui/jobs", params=query).text).keys()
    assert "learning_rate" in columns(signed_in_browser.get("/ui/jobs", params=query | {"cols": "learning_rate"}).text)


@pytest.mark.usefixtures("runs")
def test_the_table_is_sorted_by_each_head_and_shows_the_chosen_columns(signed_in_browser):
    query = {"q": "tag:sweep", "charts": "1", "sort": "metric.val/loss"}
    page = signed_in_browser.get("/ui/jobs", params=query).text
    assert columns(page)["RATE"] == ("0.03", "0.01", "0.1")
    down = html.unescape(re.search(r'aria-sort="ascending"[^>]*><a[^>]*href="([^"]+)">val/loss<', page)[1])
    assert columns(signed_in_browser.get(down).text)["RATE"] == ("0.1", "0.01", "0.03")
    hidden = signed_in_browser.get("/ui/jobs", params=query | {"cols": ["cost", "option.command"]}).text
    assert columns(hidden).keys() == {"Job", "State", "Cost", "command"}
    assert columns(hidden)["command"][0] == "train --lr 0.03"


@pytest.mark.usefixtures("runs")
def test_pages_of_many_runs_say_their_place(signed_in_browser, monkeypatch):
    monkeypatch.setattr(runs_page, "MOST_RUNS", 2)
    page = signed_in_browser.get("/ui/jobs", params={"charts": "1", "q": "tag:sweep"}).text
    assert "1\N{EN DASH}2 of 3 jobs" in page
    onward = html.unescape(re.search(r'href="([^"]+)" rel="next"', page)[1])
    assert "3\N{EN DASH}3 of 3 jobs" in signed_in_browser.get(onward).text


def act(browser, page, **fields):
    """The page after an action on all runs of a page."""
    form = re.search(r'<form[^>]*action="/ui/jobs/actions".*?<div class="bulk"', page, re.DOTALL)[0]
    hidden = re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', form)
    sent = {name: html.unescape(value) for name, value in hidden} | fields
    sent["ids"] = re.findall(r'name="ids" value="([^"]+)"', form)
    return browser.post("/ui/jobs/actions", data=sent, follow_redirects=True).text


def test_all_that_match_are_looked_for_among_the_chosen_jobs_alone(signed_in_browser, client, runs, monkeypatch):
    array = client.post("/jobs", json=make_job_body(array="0,1,2,3")).json()["arrayId"]
    monkeypatch.setattr(runs_page, "MOST_RUNS", 2)
    page = signed_in_browser.get("/ui/jobs", params={"charts": "1", "ids": f"{array},{runs[0]}"}).text
    assert "Select all 5 that match" in page
    assert "of 5 jobs" in act(signed_in_browser, page, action="compare", every="yes")
    assert "Tagged: 5 jobs" in act(signed_in_browser, page, action="tag", tag="mine", every="yes")
    assert {job["id"] for job in client.get("/jobs?tag=mine").json()["jobs"]} & {*runs} == {runs[0]}


def test_a_full_page_of_runs_is_acted_on_at_once(signed_in_browser, client):
    made = client.post("/jobs", json=make_job_body(array=",".join(map(str, range(200))))).json()["arrayId"]
    page = signed_in_browser.get(f"/ui/jobs?q=array:{made}&charts=1").text
    assert "Asked to stop: 200 jobs" in act(signed_in_browser, page, action="stop")


def read_curves(browser, **params):
    """The curves of runs, by run and metric."""
    lines = browser.get("/ui/runs/series", params=params).text.splitlines()
    return {one["id"]: {curve["name"]: curve for curve in one["series"]} for one in map(json.loads, lines)}


def test_the_curves_of_runs_are_read_together(signed_in_browser, client, runs):
    found = read_curves(signed_in_browser, ids=",".join([*runs, "jnone"]))
    assert list(found) == runs
    assert {name: curve["last"] for name, curve in found[runs[1]].items()} == {"val/loss": 0.2, "accuracy": 0.8}
    client.delete(f"/jobs/{runs[0]}")
    assert read_curves(signed_in_browser, ids=runs[0]) == {}


def test_curves_are_thin_on_each_axis_and_whole_in_a_range(signed_in_browser, client, worker, database):
    worker.register()
    job_id = client.post("/jobs", json=make_job_body()).json()["id"]
    job = worker.start()
    row = {"job_id": job_id, "attempt": 1, "source": "job"}
    # A second attempt from step 900 on writes steps again; one value is not finite, and the last metric has no steps.
    steps = [(attempt, step) for attempt, first in ((1, 0), (2, 900)) for step in range(first, 1000)]
    rows = [
        row
        | {"attempt": attempt, "offset": step, "step": step, "at": job.created_at + timedelta(seconds=step)}
        | {"values": {"loss": math.nan if step == 500 else 99.0 if step == 777 else attempt + 1 / (1 + step)}}
        for attempt, step in steps
    ]
    rows += [
        row | {"offset": 5000 + at, "step": None, "at": job.created_at, "values": {"note": float(at)}}
        for at in range(3)
    ]
    with database.write() as session:
        metrics.add(session, rows)
    curves = read_curves(signed_in_browser, ids=job_id, points=100)[job_id]
    loss = curves["loss"]
    assert (len(loss["x"]), loss["x"][0], loss["x"][-1], loss["max"]) == (100, 0, 999, 99.0)
    assert 99.0 in loss["y"], "no spike is lost"
    assert loss["y"][-1] == pytest.approx(2.001), "of two values at one step, the later one"
    assert curves["note"]["x"] == [0, 1, 2]
    part = read_curves(signed_in_browser, ids=job_id, points=100, **{"from": 490, "to": 510})[job_id]["loss"]
    assert (part["x"], part["y"][10]) == (list(range(490, 511)), None)
    assert (part["max"], part["last"]) == (99.0, loss["last"]), "of the whole run"
    by_time = read_curves(signed_in_browser, ids=job_id, axis="time")[job_id]["loss"]
    assert by_time["x"][-1] - by_time["x"][0] == pytest.approx(999)
    by_seconds = read_curves(signed_in_browser, ids=job_id, axis="relative")[job_id]["loss"]
    assert 0 <= job.created_at.timestamp() + 999 - by_seconds["x"][-1] - by_time["x"][0] < 999


def test_runs_with_many_values_are_sampled_and_say_so(signed_in_browser, runs, database, monkeypatch):
    monkeypatch.setattr(runs_page, "MOST_VALUES", 3 * 500)
    at = datetime.now(UTC)
    row = {"job_id": runs[0], "attempt": 1, "source": "job", "at": at}
    with database.write() as session:
        metrics.add(session, [row | {"offset": at, "step": at, "values": {"loss": at}} for at in range(1, 3000)])
    lines = signed_in_browser.get("/ui/runs/series", params={"ids": ",".join(runs)}).text.splitlines()
    first, second, _ = map(json.loads, lines)
    assert (first["sampled"], second["sampled"]) == (True, False)
    assert first["series"][-1]["last"] == 2999


def test_an_empty_workspace_and_a_wrong_query_say_so(signed_in_browser):
    assert "No jobs here" in signed_in_browser.get("/ui/jobs?q=name:none&charts=1").text
    wrong = signed_in_browser.get("/ui/jobs", params={"charts": "1", "q": "stat:failed"})
    assert (wrong.status_code, "not a field" in wrong.text) == (400, True)


def test_the_metric_beside_the_list_is_one_that_most_of_its_jobs_have(signed_in_browser, client, worker, database):
    """An accuracy says more than a loss, but not of jobs that have none."""
    worker.register()
    for named in ("accuracy", "val_loss", "val_loss", "val_loss"):
        client.post("/jobs", json=make_job_body(name=named))
        job = worker.start()
        row = {"job_id": job.id, "attempt": 1, "source": "job", "at": job.created_at, "offset": 0, "step": 0}
        with database.write() as session:
            metrics.add(session, [row | {"values": {named: job.seq, "lr": 0.1}}])
        worker.end(job, exit_code=0)
    shown = columns(signed_in_browser.get("/ui/jobs").text)
    assert "val_loss" in shown
    assert "accuracy" not in shown
    assert "accuracy" in columns(signed_in_browser.get("/ui/jobs?q=name:accuracy").text)


@pytest.mark.usefixtures("runs")
def test_a_kept_column_without_a_value_is_left_out_until_a_job_has_one(signed_in_browser):
    kept = {"cols": ["accuracy", "bleu", "params.beam", "cost"], "q": ""}
    page = signed_in_browser.post("/ui/jobs/columns", data=kept, follow_redirects=True).text
    assert {"accuracy", "Cost"} <= columns(page).keys()
    assert not {"bleu", "beam"} & columns(page).keys()
    assert re.search(r'value="bleu" checked', page), "it stays chosen"
    assert "bleu" in columns(signed_in_browser.get("/ui/jobs?cols=bleu").text), "as asked for by the address"


def test_a_list_asks_no_question_whose_answer_is_known(signed_in_browser, client, database):
    """Of sweeps, arrays and comparisons nothing is asked where there are none."""
    client.post("/jobs", json=make_job_body())
    signed_in_browser.get("/ui/jobs")
    with record_requests(database) as asked:
        signed_in_browser.get("/ui/jobs")
    texts = [text for text, _ in asked]
    assert not [text for text in texts if text.startswith(("SELECT sweeps.", "SELECT comparisons."))]
