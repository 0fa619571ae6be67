"""The final value of a metric and its arrival at a target, from all stored rows."""

import math
from datetime import UTC, datetime, timedelta

import pytest

from core.comparison.measurement import Arrival, final_value, find_arrival
from core.jobs.tracking import metrics

NAME = "val 'a\""
START = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def write(database, submit):
    """A function that stores reports of a job: source, attempt, seconds since the start, and values."""

    def write(*reports):
        job = submit()
        rows = [
            {"job_id": job.id, "attempt": attempt, "source": source, "offset": place, "step": 10.0 * place}
            | {"at": START + timedelta(seconds=seconds), "values": values}
            for place, (source, attempt, seconds, values) in enumerate(reports)
        ]
        with database.write() as session:
            metrics.add(session, rows)
        return job.id

    return write


@pytest.mark.parametrize(
    ("values", "final"),
    [
        ([0.5], 0.5),
        ([0.1, 0.9, 0.4], 0.4),
        ([0.9, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.6], 0.7),
        ([0.5, math.nan], None),
        ([0.1] * 10 + [0.5, 0.7, math.inf], 0.6),
        ([], None),
    ],
)
def test_the_final_value_is_the_median_of_the_last_fifth(database, write, values, final):
    job_id = write(*(("job", 1, place, {NAME: value, "lr": 1.0}) for place, value in enumerate(values)))
    with database.read() as session:
        assert final_value(session, job_id, NAME) == (final and pytest.approx(final))


def test_time_to_a_target_is_running_time(database, write):
    began = START.timestamp()
    runs = [(began, began + 2), (began + 50, began + 60)]
    seconds = ((1, 0), (1, 1), (1, 2), (2, 51), (2, 52))
    job_id = write(*(("job", attempt, at, {NAME: float(place)}) for place, (attempt, at) in enumerate(seconds)))
    with database.read() as session:
        assert find_arrival(session, job_id, NAME, "max", 1.0, runs) == Arrival(1, 10)
        pause = "the pause between attempts does not count"
        assert find_arrival(session, job_id, NAME, "max", 3.0, runs) == Arrival(3, 30), pause
        assert find_arrival(session, job_id, NAME, "max", 5.0, runs) is None
        assert find_arrival(session, job_id, NAME, "min", 0.0, runs) == Arrival(0, 0)
