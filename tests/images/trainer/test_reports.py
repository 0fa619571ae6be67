import json
import os
import signal

import pytest

from gradient_trainer.errors import TrainingStopped
from gradient_trainer.metrics import MetricsFile
from gradient_trainer.pace import WARM_UP_STEPS, Pace
from gradient_trainer.stopping import StopRequest


def test_metrics_are_appended_as_json_lines(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    for step in (1, 2):
        metrics = MetricsFile.from_environment({"GRADIENT_METRICS_FILE": str(path)})
        metrics.write(step, {"loss": 0.5 / step, "val_loss": float("nan")})
        metrics.close()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(row["step"], row["loss"]) for row in rows] == [(1, 0.5), (2, 0.25)]
    assert all(row["time"] > 1e9 and "val_loss" not in row for row in rows)


def test_without_a_metrics_file_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    metrics = MetricsFile.from_environment({})
    metrics.write(1, {"loss": 1.0})
    metrics.close()
    assert list(tmp_path.iterdir()) == []


def test_pace_leaves_out_warm_up_and_what_lies_between_stretches():
    now = [0.0]
    pace = Pace(clock=lambda: now[0])

    def stretch(steps, seconds_each):
        pace.begin()
        for _ in range(steps):
            now[0] += seconds_each
            pace.step()
        return pace.end()

    assert stretch(1, 30.0) is None
    now[0] += 100
    assert stretch(WARM_UP_STEPS - 1 + 10, 0.5) == pytest.approx(2.0)
    now[0] += 100
    assert stretch(30, 0.25) == pytest.approx(4.0)
    assert pace.overall == pytest.approx(40 / 12.5)


def test_pace_is_unknown_before_the_warm_up_is_over():
    pace = Pace()
    pace.begin()
    pace.step()
    assert pace.end() is None
    assert pace.overall is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_remembered_and_the_old_reaction_returns(number):
    before = signal.getsignal(number)
    with StopRequest() as stop:
        assert stop.signal is None
        os.kill(os.getpid(), number)
        assert stop.signal is number
    assert signal.getsignal(number) is before


def test_a_second_interrupt_ends_at_once():
    with StopRequest():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_stopped_is_an_exit_with_the_shells_code():
    assert TrainingStopped(7, signal.SIGTERM).code == 143
