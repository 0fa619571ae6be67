"""Samples: how many rows a job leaves, what they tell, and the peaks."""

import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from core.db.models.jobs import Attempt
from worker.attempt import usage
from worker.attempt.usage import HostMeter, UsageSampler, UsageTotals

HOURS = 3600


def watched(seconds, values, *, every=2.0):
    """Rows of a job that was sampled for so long, by the second they came at, and its sampling."""
    sampling, rows, at = UsageSampler(UsageTotals(), every, 0.0), {}, 0.0
    while at < seconds:
        at += every
        row = sampling.add(at, values(at))
        if row is not None:
            rows[at] = row
    return rows, sampling


def test_a_job_of_a_day_leaves_some_rows_and_misses_no_peak():
    """One short burst of memory, long after rows have become rare."""
    burst = 15 * HOURS + 2
    rows, sampling = watched(20 * HOURS, lambda at: {"memory_bytes": 9e9 if at == burst else 1e9, "cpu_percent": 50.0})
    assert 1000 < len(rows) < 2000
    gaps = [later - earlier for earlier, later in zip(rows, list(rows)[1:], strict=False)]
    assert (min(gaps), max(gaps)) == (2.0, pytest.approx(240, abs=4))
    assert sampling.totals.columns()["peak_memory_bytes"] == 9_000_000_000
    assert max(row["memory_bytes"] for row in rows.values()) == 9e9, "the chart shows it, too"


def test_a_row_tells_of_all_samples_since_the_last():
    sampling = UsageSampler(UsageTotals(), 1.0, 0.0)
    sampling.add(601.0, {"cpu_percent": 100.0})  # from here on a row every two seconds
    assert sampling.add(602.0, {"cpu_percent": 0.0, "memory_bytes": 5.0, "gpu0_watts": 100.0}) is None
    assert sampling.add(603.0, {"cpu_percent": 50.0, "memory_bytes": 2.0, "gpu0_watts": 300.0}) == {
        "cpu_percent": 25.0,
        "memory_bytes": 5.0,
        "gpu0_watts": 200.0,
    }
    assert sampling.flush() is None
    sampling.add(604.0, {"memory_bytes": 7.0})
    assert sampling.flush() == {"memory_bytes": 7.0}, "what is left at the end is not lost"


def test_means_go_by_time_and_gpus_count_together():
    peaks = UsageTotals()
    peaks.add({"cpu_percent": 100.0, "gpu0_percent": 80.0, "gpu1_percent": 0.0, "gpu0_memory_bytes": 3.0}, 30.0)
    peaks.add({"cpu_percent": 0.0, "gpu0_percent": 0.0, "gpu1_percent": 0.0, "gpu1_memory_bytes": 4.0}, 10.0)
    columns = peaks.columns()
    assert (columns["mean_cpu_percent"], columns["peak_cpu_percent"]) == (75.0, 100.0)
    assert (columns["mean_gpu_percent"], columns["peak_gpu_percent"]) == (30.0, 80.0)
    assert (columns["peak_gpu_memory_bytes"], columns["peak_memory_bytes"]) == (4, None)
    assert columns["sampled_seconds"] == 40.0


def test_the_load_of_the_host_is_that_of_all_its_programs(monkeypatch):
    with monkeypatch.context() as stopped:
        stopped.setattr(usage, "time", SimpleNamespace(monotonic=lambda: 1.0))
        assert HostMeter().read() == {}, "the kernel counts in hundredths of a second"
    sampling = UsageSampler(UsageTotals(), 2.0, 0.0, on_host=True)
    time.sleep(0.2)
    sampling.add(1.0, {"memory_bytes": 1.0})
    assert sampling.totals.columns()["mean_host_cpu_percent"] is None, "there is no figure of the job to set beside it"
    busy = "import time\nend = time.process_time() + 1\nwhile time.process_time() < end: pass"
    began = time.monotonic()
    subprocess.run([sys.executable, "-c", busy], check=True)
    passed = time.monotonic() - began
    assert "host_cpu_percent" not in (sampling.add(2.0, {"cpu_percent": 1.0}) or {}), "no chart of a job"
    assert sampling.totals.columns()["mean_host_cpu_percent"] >= 95 / (passed + 0.05)


def test_the_next_worker_goes_on_where_the_last_one_left():
    whole, first = UsageTotals(), UsageTotals()
    for seconds, percent in ((10.0, 100.0), (30.0, 20.0)):
        whole.add({"cpu_percent": percent, "memory_bytes": percent}, seconds)
    first.add({"cpu_percent": 100.0, "memory_bytes": 100.0}, 10.0)
    second = UsageTotals.of(Attempt(**first.columns()))
    second.add({"cpu_percent": 20.0, "memory_bytes": 20.0}, 30.0)
    assert second.columns() == whole.columns()
    assert UsageTotals.of(None).columns() == UsageTotals.of(Attempt()).columns() == {}


def test_a_time_in_which_nobody_watched_counts_little():
    sampling = UsageSampler(UsageTotals(), 2.0, 0.0)
    sampling.add(2.0, {"cpu_percent": 0.0})
    sampling.add(20 * HOURS, {"cpu_percent": 100.0})
    assert sampling.totals.seconds == 62.0
