"""The page of a job's metrics, as a browser without scripts has it."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from support.live_service import make_job_body

from core.jobs.tracking import metrics

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def job_id(client):
    return client.post("/jobs", json=make_job_body(name="trained")).json()["id"]


def add(database, job_id, values, *, step):
    rows = [
        {
            "job_id": job_id,
            "attempt": 1,
            "source": "job",
            "offset": n,
            "step": n if step else None,
            "at": BEGAN + timedelta(seconds=n),
            "values": values(n),
        }
        for n in range(20)
    ]
    with database.write() as session:
        metrics.add(session, rows)


def test_a_job_without_metrics_learns_how_to_write_them(signed_in_browser, job_id, worker):
    page = signed_in_browser.get(f"/ui/jobs/{job_id}/metrics").text
    assert "No metrics yet." in page
    worker.end(worker.start(), exit_code=0)
    assert "The job wrote no metrics." in signed_in_browser.get(f"/ui/jobs/{job_id}/metrics").text


@pytest.mark.parametrize("step", [True, False])
def test_metrics_are_a_table(signed_in_browser, database, job_id, step):
    add(database, job_id, lambda n: {"loss": 1 / (n + 1), "gone": math.nan}, step=step)
    page = signed_in_browser.get(f"/ui/jobs/{job_id}/metrics?log=1&smooth=0.6&x=time")
    assert '<th scope="row" class="name">loss</th><td class="number" data-label="Last">0.05</td>' in page.text
    assert "uplot-1.6.32.css" in page.text
    assert "<noscript>" not in signed_in_browser.get(f"/ui/jobs/{job_id}/metrics?part=live").text
