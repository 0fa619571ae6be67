import json

import pytest

import gradient_jobs
from gradient_jobs import metrics


class Scalar:
    """A number of a library, such as a tensor with one value."""

    def __float__(self):
        return 0.25


def test_values_are_lines_of_the_metrics_file(tmp_path, monkeypatch, capsys):
    file = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("GRADIENT_METRICS_FILE", str(file))
    gradient_jobs.log(step=7, loss=Scalar(), accuracy=1)
    gradient_jobs.log(loss=float("nan"))
    first, second = map(json.loads, file.read_text().splitlines())
    assert first == {"time": first["time"], "step": 7, "loss": 0.25, "accuracy": 1}
    assert second["time"] >= first["time"] > 1.7e9
    assert "step" not in second
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({}, "at least one value"),
        ({"loss": "low"}, "loss='low' is not a value"),
        ({"loss": None}, "loss=None is not one number"),
        ({"loss": [1, 2]}, r"loss=\[1, 2\] is not one number"),
        ({"time": 3}, "time=3 is not a value"),
        ({"step": "one", "loss": 1}, "step='one' is not a value"),
    ],
)
def test_values_that_are_not_numbers_are_refused(values, error):
    with pytest.raises(TypeError, match=error):
        gradient_jobs.log(**values)


def test_the_share_of_time_waiting_for_batches_is_recorded(tmp_path, monkeypatch):
    file = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("GRADIENT_METRICS_FILE", str(file))
    now = [0.0]
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])

    def load():
        for batch in range(4):
            now[0] += 100 if batch == 0 else 3
            yield batch

    seen = []
    for batch in gradient_jobs.watch_input(load()):
        now[0] += 1
        seen.append(batch)
    assert seen == [0, 1, 2, 3]
    (line,) = map(json.loads, file.read_text().splitlines())
    assert line["input_wait_share"] == 9 / 12
    for _ in gradient_jobs.watch_input([]):
        pytest.fail("there is no batch")
    assert len(file.read_text().splitlines()) == 1, "and nothing to record"
    for batch in gradient_jobs.watch_input(load()):
        now[0] += 1
        if batch == 1:
            break
    assert json.loads(file.read_text().splitlines()[1])["input_wait_share"] == 3 / 4


def test_parameters_are_a_line_of_the_metrics_file(tmp_path, monkeypatch, capsys):
    given = {"lr": 0.01, "opt": {"name": "adam", "betas": [0.9, 0.99]}, "amp": True, "none": None, "wd": Scalar()}
    expected = {"lr": 0.01, "opt.name": "adam", "opt.betas": "[0.9, 0.99]", "amp": True, "wd": 0.25}
    file = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("GRADIENT_METRICS_FILE", str(file))
    gradient_jobs.log_params(given)
    assert json.loads(file.read_text()) == {"params": expected}
    monkeypatch.delenv("GRADIENT_METRICS_FILE")
    gradient_jobs.log_params({"lr": 0.01, "opt": "adam"})
    assert capsys.readouterr().err == "lr 0.01  opt adam\n"
