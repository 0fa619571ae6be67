"""Measurements of ended jobs are kept; those of others, and of ones that ended just now, are not."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from core.comparison.measurement import MeasurementCache

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(**changes):
    fields = {"id": "j1", "attempt": 1, "ended": True, "logs_removed_at": None}
    return SimpleNamespace(**fields | {"finished_at": NOW - timedelta(hours=1)} | changes)


def count_measurements(cache, *asked):
    """Number of measurements for jobs with their inputs."""
    made = []
    for number, (one, inputs) in enumerate(asked):
        assert isinstance(cache.get(one, NOW, inputs, lambda number=number: made.append(number) or number), int)
    return len(made)


def test_an_ended_job_is_measured_once_for_the_same_inputs():
    cache = MeasurementCache()
    assert count_measurements(cache, (job(), ("loss",)), (job(), ("loss",)), (job(), ("accuracy",))) == 2


@pytest.mark.parametrize(
    "changes", [{"ended": False, "finished_at": None}, {"finished_at": NOW - timedelta(seconds=10)}]
)
def test_a_job_whose_metrics_may_still_come_is_measured_each_time(changes):
    assert count_measurements(MeasurementCache(), *[(job(**changes), ())] * 3) == 3
