"""The processes of an attempt, measured."""

from types import SimpleNamespace

import pytest

from worker.runner import usage
from worker.runner.usage import UsageMeter


@pytest.fixture
def counts(monkeypatch):
    """Return the results of counting pages, which takes ten seconds each time, and the clock."""
    results, now = [], [0.0]

    def count(_pids, _files):
        now[0] += 10
        return results.pop(0)

    monkeypatch.setattr(usage, "_count_pages", count)
    monkeypatch.setattr(usage, "time", SimpleNamespace(monotonic=lambda: now[0]))
    return results, now


def test_pages_are_counted_in_a_small_part_of_the_time(counts):
    results, now = counts
    results += [100, 150]
    meter = UsageMeter()
    assert meter.measure([1], 400, 0, 1000) == 100
    assert meter.measure([1], 430, 0, 1000) == 130, "what was added may be its own"
    assert meter.measure([1], 90, 0, 1000) == 90, "no more than what is resident"
    assert results == [150]
    now[0] += 500
    assert meter.measure([1], 430, 0, 1000) == 150
    assert meter.peak == 150


def test_a_job_is_over_its_limit_only_by_what_was_counted(counts):
    results, _ = counts
    results += [100, 140, 210]
    meter = UsageMeter()
    assert [meter.measure([1], resident, 0, 200) for resident in (400, 520, 600)] == [100, 140, 210]
    assert (results, meter.peak) == ([], 210)
