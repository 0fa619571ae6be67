import json
import math
import time
from decimal import Decimal

import numpy as np
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


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Return what is written to the metrics file."""
    file = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("GRADIENT_METRICS_FILE", str(file))
    monkeypatch.setattr(metrics, "reported", set())
    return lambda: [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (lambda log: log({"loss": 0.5}, step=2), {"step": 2, "loss": 0.5}),
        (lambda log: log({"loss": 0.5}, 2), {"step": 2, "loss": 0.5}),
        (lambda log: log({"loss": 0.5, "step": 2}), {"step": 2, "loss": 0.5}),
        (lambda log: log({"loss": 0.5}, step=2, acc=1), {"step": 2, "loss": 0.5, "acc": 1}),
        (lambda log: log({"train": {"loss": 0.5}, 7: 1}), {"train.loss": 0.5, "7": 1}),
        (lambda log: log(step=2, values=1, named=2), {"step": 2, "values": 1, "named": 2}),
        (
            lambda log: log(loss=np.array([2.5]), acc=np.float32(0.5), ok=np.bool_(1)),
            {"loss": 2.5, "acc": 0.5, "ok": 1},
        ),
        (lambda log: log(big=10**400, decimal=Decimal("0.5")), {"big": math.inf, "decimal": 0.5}),
    ],
)
def test_values_are_given_as_everybody_writes_it(written, capsys, call, line):
    call(gradient_jobs.log)
    (found,) = written()
    assert found.pop("time") > 1.7e9
    assert found == line
    assert capsys.readouterr() == ("", "")


class Broken:
    def __float__(self):
        raise RuntimeError("CUDA error")


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        *((None, None), ("low", "low"), ("0.5", "0.5"), ([1, 2], []), ({}, []), (range(2), [])),
        *((Broken(), {}), (object(), {}), (1j, {}), ("x" * 70_000, "x" * 1000)),
    ],
)
@pytest.mark.parametrize("name", ["bad", "step"])
def test_a_value_that_is_no_number_ends_no_run_and_is_told(written, capsys, name, value, kept):
    for _ in range(2):
        gradient_jobs.log({name: value, "loss": 0.5})
    for line in written():
        assert (line["loss"], line[name]) == (0.5, kept), "the server tells its kind"
    assert capsys.readouterr().err == f"gradient_jobs.log: {name!r} is left out: it is not a single number\n"


def test_neither_a_reserved_name_nor_a_full_disk_ends_a_run(written, capsys, monkeypatch):
    before = time.time()
    gradient_jobs.log(time=3, loss=0.5)
    assert written()[0]["time"] >= before
    gradient_jobs.log({})
    assert len(written()) == 1
    monkeypatch.setenv("GRADIENT_METRICS_FILE", "/dev/full")
    gradient_jobs.log(loss=1)
    gradient_jobs.log_params({"lr": 1})
    assert [line.split(" is left out: ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "gradient_jobs.log: 'time'",
        "gradient_jobs.log: '/dev/full'",
    ]


@pytest.mark.parametrize("call", [lambda log: log(), lambda log: log(step=1), lambda log: log(1, {"loss": 2})])
def test_a_call_without_values_shows_one_with(call):
    with pytest.raises(TypeError, match=r'log\(\{"loss": 0.5\}, step=1\)'):
        call(gradient_jobs.log)


def test_outside_of_a_job_values_are_printed(capsys, monkeypatch):
    monkeypatch.delenv("GRADIENT_METRICS_FILE", raising=False)
    gradient_jobs.log({"loss": 0.25}, step=3, acc=float("nan"))
    assert capsys.readouterr().err == "step 3  loss 0.25  acc nan\n"


def test_many_values_and_long_parameters_are_lines_that_the_server_takes(written):
    gradient_jobs.log({f"grad/{number}": number for number in range(1200)}, step=1)
    gradient_jobs.log_params(
        {"big": "y" * 66_000, "opt": "adam"} | {f"p{number}": "z" * 2000 for number in range(1000)}
    )
    assert [line.get("step") for line in written()] == [1, 1, 1, None, None, None]
    assert sum(len(line.get("params", ())) for line in written()) == 1002
    assert all(len(json.dumps(line)) < 1 << 20 for line in written())
    assert written()[3]["params"]["opt"] == "adam"


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
    given = {
        "lr": 0.01,
        "opt": {"name": "adam", "betas": [0.9, 0.99]},
        "amp": True,
        "none": None,
        "wd": Scalar(),
        "np": np.bool_(1),
    }
    expected = {"lr": 0.01, "opt.name": "adam", "opt.betas": "[0.9, 0.99]", "amp": True, "wd": 0.25, "np": True}
    file = tmp_path / "metrics.jsonl"
    monkeypatch.setenv("GRADIENT_METRICS_FILE", str(file))
    gradient_jobs.log_params(given)
    assert json.loads(file.read_text()) == {"params": expected}
    monkeypatch.delenv("GRADIENT_METRICS_FILE")
    gradient_jobs.log_params({"lr": 0.01, "opt": "adam"})
    assert capsys.readouterr().err == "lr 0.01  opt adam\n"
