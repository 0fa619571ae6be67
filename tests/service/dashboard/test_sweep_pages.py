"""The pages of sweeps: the list, and one with its trials, its chart, its changes and its owner."""

import math
import re

import pytest
from support.job_table import columns
from support.live_service import make_job_body

from core.db.database import now
from core.jobs.tracking import metrics
from service.submission.sweeps import advance


def create(client, **fields):
    body = make_job_body(space={"lr": "log:1e-5..1e-1", "opt": "adam,sgd"}, metric="loss:min", trials=4, name="tune")
    return client.post("/sweeps", json=body | fields).json()


def finish_trial(stores, worker, value, reason="completed"):
    job = worker.start()
    with stores.database.write() as session:
        row = {"job_id": job.id, "attempt": 1, "source": "job", "offset": 1, "step": 3.0}
        at = session.scalars(now().select()).one()
        metrics.add(session, [row | {"at": at, "values": {"loss": value}}])
    worker.end(job, reason)
    return job.id


def test_the_list_is_empty_and_then_has_a_row(client):
    assert "gradient-cli sweeps create" in client.get("/ui/sweeps").text
    made = create(client)
    page = client.get("/ui/sweeps").text
    assert f'<a href="/ui/sweeps/{made["id"]}">tune</a>' in page
    assert "4 running" in page
    assert "none yet" in page


def test_a_sweep_shows_its_trials_with_the_best_marked(client, stores, worker):
    worker.register()
    made = create(client)
    for value in (0.75, 0.5, 0.625):
        finish_trial(stores, worker, value)
    advance(stores, made["id"])
    page = client.get(client.get(f"/ui/sweeps/{made['id']}").headers["location"]).text
    assert re.search(r"best loss <a[^>]*>0.5<", page)
    names = re.findall(r'<tr data-run.*?<a id="[^>]*>(tune\[\d\])<', page, re.DOTALL)
    assert names == ["tune[1]", "tune[2]", "tune[0]", "tune[3]"], "the best first, those without a value last"
    assert re.findall(r'class="number best brief" data-value="([\d.]+)"', page) == ["0.5"]
    assert ">Succeeded 3</a>" in page
    assert "4 of 4 trials" in page
    lr = made["trials"][0]["params"]["lr"]
    assert f">{lr:.4g}"[:5] in page
    assert client.get(f"/ui/jobs?ids={made['id']}&charts=1").text.count("<tr data-run=") == 4
    job = client.get(f"/ui/jobs/{made['trials'][0]['jobId']}/config").text
    assert f'<dt>Sweep</dt><dd><a href="/ui/sweeps/{made["id"]}">' in job


@pytest.mark.parametrize(("goal", "best"), [("min", "0.5"), ("max", "0.75")])
def test_the_folded_row_has_the_value_that_the_sweep_looks_for(client, stores, worker, goal, best):
    worker.register()
    create(client, metric=f"loss:{goal}")
    for value in (0.75, math.inf, 0.5, -math.inf):
        finish_trial(stores, worker, value)
    page = client.get("/ui/jobs").text
    assert columns(page)["loss"] == (best,)


def test_a_metric_whose_name_and_sweeps_do_not_tell_its_direction_has_no_best(client, worker, database):
    worker.register()
    for value in (1.0, 2.0):
        client.post("/jobs", json=make_job_body())
        job = worker.start()
        with database.write() as session:
            row = {"job_id": job.id, "attempt": 1, "source": "job", "offset": 1, "step": 0, "at": job.created_at}
            metrics.add(session, [row | {"values": {"temperature": value}}])
        worker.end(job)
    page = client.get("/ui/jobs").text
    assert ">2<" in page
    assert "number best" not in page
    assert "best temperature" not in page


def test_trials_of_programs_have_rows_without_a_job(client):
    made = client.post("/sweeps", json={"space": {"x": "1,2"}, "metric": "loss:min", "method": "grid"}).json()
    path = f"/sweeps/{made['id']}/trials"
    empty = client.get(f"/ui/jobs?q=sweep:{made['id']}&charts=1").text
    assert f'gradient_jobs.Client().sweeps.get("{made["id"]}").ask()' in empty
    for trial, value in enumerate((0.5, None)):
        client.post(path, json={"key": f"{trial}" * 16})
        values = {"values": [{"step": 0, "value": value}], "end": "complete"}
        client.post(f"{path}/{trial}", json={"key": f"{trial}" * 16} | values).raise_for_status()
    page = client.get(f"/ui/jobs?q=sweep:{made['id']}&charts=1").text
    assert 'id="trial-0">Trial 0 <span class="tag">Best</span></th>' in re.sub(r"\s+</th>", "</th>", page)
    assert re.findall(r'<td data-label="Last loss"[^>]*>([^<]*)<', page) == ["0.5", "not finite"]
    assert "with trials requested by programs" in page
    assert "No jobs here" not in page
    assert f'href="/ui/sweeps/{made["id"]}#trial-0">0.5</a>' in client.get("/ui/sweeps").text


def test_the_owner_alone_pauses_stops_and_deletes_it(client, bob):
    made = create(client)
    page = f"/ui/jobs?q=sweep%3A{made['id']}&charts=1"

    def press(action, headers=None):
        return client.post(
            f"/ui/sweeps/{made['id']}/{action}", headers={"Origin": str(client.base_url)} | (headers or {})
        )

    assert "/pause" in client.get(page).text
    assert "/pause" not in client.get(page, headers=bob[1]).text
    assert press("pause", bob[1]).status_code == 403
    assert press("pause").headers["location"] == page
    assert "Paused by its owner." in client.get(page).text
    press("resume")
    press("stop")
    assert client.get(f"/sweeps/{made['id']}").json()["state"] == "stopped"
    assert press("delete").headers["location"] == "/ui/sweeps"
    assert client.get(f"/ui/sweeps/{made['id']}").status_code == 404
