"""Sweeps that tests create, log for, and bring to an end."""

import math
from datetime import timedelta

import pytest
from support.live_service import make_job_body, wait_until

from core.db.database import now
from core.jobs.tracking import metrics
from service.submission.sweeps import advance

SPACE = {"lr": "log:1e-5..1e-1", "opt": "adam,sgd"}


@pytest.fixture
def sweep(client):
    """A function that creates a sweep."""

    def create(headers=None, **fields):
        body = make_job_body(space=SPACE, metric="loss:min", trials=4, parallel=2, name="tune") | fields
        answer = client.post("/sweeps", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return answer.json()

    return create


@pytest.fixture
def show(client):
    return lambda made: client.get(f"/sweeps/{made['id']}").json()


@pytest.fixture
def log(database):
    """A function that has a job log values of a metric, each with its step."""
    offsets = iter(range(1_000_000))

    def log(job, values, *, first=1, name="loss", steps=None, seconds=0, **place):
        with database.write() as session:
            at = session.scalars(now().select()).one() + timedelta(seconds=seconds)
            stream = place.get("stream", metrics.FILE_STREAM)
            row = {"job_id": job.id, "attempt": place.get("attempt", job.attempt), "source": "job", "at": at}
            rows = [
                row
                | {
                    "offset": stream * metrics.STREAM_BYTES + next(offsets),
                    "step": float(step),
                    "values": {name: math.nan if value is None else value},
                }
                for step, value in zip(steps or range(first, len(values) + first), values, strict=True)
            ]
            metrics.add(session, rows)

    return log


@pytest.fixture
def settle(stores, show):
    """A function that makes rounds until a sweep is as a condition on it says."""
    return lambda made, condition: wait_until(lambda: not advance(stores, made["id"]) and condition(show(made)))
