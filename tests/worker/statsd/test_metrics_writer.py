import json
import os
from types import SimpleNamespace

import pytest

from core.jobs.tracking.metric_limits import MetricLimits
from worker.runner.statsd import DROPPED_METRIC, MAX_ROWS_PER_SECOND
from worker.statsd.metrics_writer import Aggregator, Sender

SENDER = Sender("j1", 2)


@pytest.fixture
def control(tmp_path):
    control = tmp_path / "j1-2" / "control"
    control.mkdir(parents=True)
    return control


@pytest.fixture
def collector(tmp_path):
    return Aggregator(tmp_path)


def written(control):
    lines = (control / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if k != "time"} for line in lines if line]


def gauge(name, value, job_id="j1"):
    return f"{name}:{value}|g|#container_name:{job_id}".encode()


def test_what_the_job_writes_itself_stays_whole(collector, control):
    (control / "metrics.jsonl").write_text('{"loss": 1}\n{"unfin')
    collector.receive(SENDER, gauge("acc", 0.5))
    collector.flush()
    assert (control / "metrics.jsonl").read_text().startswith('{"loss": 1}\n{"unfin\n{"time": ')


def test_a_flood_leaves_few_rows_and_says_how_much_was_dropped(collector, control, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("worker.runner.statsd.time", SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0]))
    for number in range(5000):
        collector.receive(SENDER, gauge("loss", float(number)))
        if number % 100 == 0:
            collector.flush()
    assert len(written(control)) <= MAX_ROWS_PER_SECOND + 1
    now[0] += 1
    collector.flush()
    now[0] += 1
    collector.flush()
    rows = written(control)
    assert [row["loss"] for row in rows if "loss" in row][-1] == 4999.0
    taken = len([row for row in rows if "loss" in row])
    assert [row[DROPPED_METRIC] for row in rows if DROPPED_METRIC in row][-1] == 5000.0 - taken


def test_there_are_no_more_names_than_a_job_may_have(collector, control):
    for number in range(1000):
        collector.receive(SENDER, gauge(f"m{number}", 1.0))
    collector.flush()
    [row, *dropped] = written(control)
    assert len(row) < MetricLimits().names
    assert sum(len(one) for one in dropped) <= 1


@pytest.mark.parametrize("made", ["link", "fifo", "folder"])
def test_what_the_job_puts_in_the_file_s_place_is_not_followed(collector, control, tmp_path, made):

    target = tmp_path / "target"
    target.write_text("mine\n")
    place = control / "metrics.jsonl"
    {"link": lambda: place.symlink_to(target), "fifo": lambda: os.mkfifo(place), "folder": place.mkdir}[made]()
    collector.receive(SENDER, gauge("loss", 1.0))
    collector.flush()
    assert target.read_text() == "mine\n"
