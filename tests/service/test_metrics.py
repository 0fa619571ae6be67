"""Metrics over HTTP, and how series are thinned."""

import math
import random
from datetime import UTC, datetime, timedelta

import pytest
from serving import a_job

from core.jobs import lifecycle
from core.jobs.queries import Series
from service.downsample import series_view, thin

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def points(values):
    return [(float(step), 1000.0 + step, value) for step, value in enumerate(values)]


@pytest.mark.parametrize("most", [3, 4, 5, 10, 101, 1000])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 999, 1000, 1001, 5000])
def test_thinning_keeps_order_ends_and_extremes(count, most):
    chance = random.Random(count)  # noqa: S311 - a repeatable test
    every = points([chance.gauss(0, 1) for _ in range(count)])
    kept = thin(every, most)
    assert len(kept) <= max(most, 0)
    assert kept == sorted(kept)
    assert set(kept) <= set(every)
    if count <= most:
        assert kept == every
    else:
        assert (kept[0], kept[-1]) == (every[0], every[-1])
    if most >= 10 and every:
        values = [value for *_, value in kept]
        assert max(values) == max(value for *_, value in every)
        assert min(values) == min(value for *_, value in every)


def test_what_is_not_finite_is_null_and_no_extreme():
    view = series_view(Series("loss", "job", points([1.0, math.nan, math.inf, None, 0.5])), 100)
    assert [point.value for point in view.points] == [1.0, None, None, None, 0.5]
    assert (view.min, view.max, view.last) == (0.5, 1.0, 0.5)
    thinned = series_view(Series("loss", "job", points([math.nan] * 100)), 10)
    assert len(thinned.points) <= 10
    assert (thinned.min, thinned.max, thinned.last) == (None, None, None)


def test_series_come_by_name_and_source(client, database):
    job_id = client.post("/jobs", json=a_job()).json()["id"]
    rows = [
        {
            "job_id": job_id,
            "attempt": 1,
            "source": "job",
            "offset": n,
            "step": float(n),
            "at": BEGAN + timedelta(seconds=n),
            "values": {"loss": 1 / (n + 1), "accuracy": n / 100},
        }
        for n in range(100)
    ]
    system = {
        "job_id": job_id,
        "attempt": 1,
        "source": "system",
        "offset": 0,
        "step": None,
        "at": BEGAN,
        "values": {"cpu": 87.5},
    }
    with database.write() as session:
        lifecycle.add_metrics(session, [*rows, system])
    found = client.get(f"/jobs/{job_id}/metrics").json()["series"]
    assert {(series["name"], series["source"]) for series in found} == {
        ("loss", "job"),
        ("accuracy", "job"),
        ("cpu", "system"),
    }
    loss = client.get(f"/jobs/{job_id}/metrics", params={"name": "loss", "maxPoints": 10}).json()["series"]
    assert [series["name"] for series in loss] == ["loss"]
    assert len(loss[0]["points"]) <= 10
    assert loss[0]["points"][0] == {"step": 0.0, "time": "2026-01-01T00:00:00.000Z", "value": 1.0}
    assert (loss[0]["last"], loss[0]["min"], loss[0]["max"]) == (0.01, 0.01, 1.0)
    assert client.get(f"/jobs/{job_id}/metrics", params={"name": "nothing"}).json() == {"series": []}
    assert client.get(f"/jobs/{job_id}/metrics", params={"maxPoints": 1}).status_code == 422
