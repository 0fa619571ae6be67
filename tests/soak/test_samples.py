"""A leak is told from what is flat."""

import pytest
from soak.samples import ALLOWED_INCREASE, MIB_PER_1000_JOBS, Sample, find_growth, format_table


def taken(**by_job):
    """A run of 1,000 jobs; each value grows by so much with each of them."""
    start = {"files": 20, "threads": 5, "connections": 8, "mib": 100.0}
    grown = {name: by_job.get(name, 0) for name in start}
    return [
        Sample(job, job, "worker", **{name: start[name] + grown[name] * job for name in start})
        for job in range(0, 1000, 10)
    ]


def test_what_is_flat_passes_and_has_a_row_for_each_quarter():
    assert find_growth(taken()) == []
    assert len(list(format_table(taken()))) == 1 + 4 + 1


@pytest.mark.parametrize("name", ALLOWED_INCREASE)
def test_one_that_is_kept_with_every_tenth_job_is_found(name):
    (found,) = find_growth(taken(**{name: 0.1}))
    assert name in found


def test_memory_may_grow_slowly_and_not_faster():
    assert find_growth(taken(mib=0.9 * MIB_PER_1000_JOBS / 1000)) == []
    (found,) = find_growth(taken(mib=1.1 * MIB_PER_1000_JOBS / 1000))
    assert "memory" in found


def test_too_few_samples_say_nothing_and_so_fail():
    (found,) = find_growth(taken()[:1])
    assert "too few" in found
