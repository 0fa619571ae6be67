"""The reports of `make experiments`, with scripted trainings."""

import json
import xml.etree.ElementTree as ET

import pytest

from experiments import davidnet
from experiments.__main__ import main
from experiments.chart import draw


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """Trainings that reach known accuracies: the trainer's by seed, and plain Keras' beside them."""
    accuracies = {"trainer": {1: 0.50, 2: 0.54}, "plain": {"1": 0.53, "2": 0.51}}

    def train(output, data, flags, *, seed):
        assert data == tmp_path
        output.mkdir(exist_ok=True)
        lines = [{"step": 1, "loss": 9.0}, {"step": 10, "loss": 2.0}, {"step": 18, "loss": 1.5, "val_accuracy": 0.4}]
        (output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        assert "--warm-up" not in flags or flags[flags.index("--warm-up") + 1] == "0.417e"
        return {"test_accuracy": accuracies["trainer"][seed], "seconds": 60.0, "device": "2 CPU cores"}

    def run(words):
        assert words[1:6] == [str(tmp_path / "cifar10-subset.zip"), "2", "256", "0.2", "0.417e"]
        found = {
            "losses": [[10, 2.1], [18, 1.4]],
            "curve": [[18, 0.45]],
            "test_accuracy": accuracies["plain"][words[6]],
        }
        return "printed by Keras\n" + json.dumps(found)

    monkeypatch.setattr(davidnet, "run_trainer", train)
    monkeypatch.setattr("experiments.__main__.run_trainer", train)
    monkeypatch.setattr(davidnet, "run", run)
    return accuracies


def test_both_programs_are_set_beside_each_other(scripted, tmp_path, capsys):
    words = ["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--seeds", "2", "--batch-size", "256"]
    assert main([*words, "--only", "davidnet", "--epochs", "2"]) == 0
    report = (tmp_path / "out" / "davidnet.md").read_text()
    assert report in capsys.readouterr().out
    assert "| 18 | training loss | 1.500 (1.500 to 1.500) | 1.400 (1.400 to 1.400) |" in report
    assert "| 18 | validation accuracy | 40.00% (40.00% to 40.00%) | 45.00% (45.00% to 45.00%) |" in report
    assert "| end | test accuracy | 52.00% (50.00% to 54.00%) | 52.00% (51.00% to 53.00%) |" in report
    assert "0.00 points apart, the seeds of one program up to 4.00: within the spread" in report
    assert (tmp_path / "out" / "davidnet-losses.svg").read_text().count("<polyline") == 8
    assert len(json.loads((tmp_path / "out" / "davidnet.json").read_text())["trainer"]) == 2
    scripted["plain"] |= {"1": 0.6, "2": 0.61}
    assert main([*words, "--only", "davidnet", "--epochs", "2"]) == 1
    assert "OUTSIDE the spread" in (tmp_path / "out" / "davidnet.md").read_text()


def test_mnist_is_set_beside_the_published_accuracy(scripted, tmp_path):
    words = ["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--only", "mnist"]
    scripted["trainer"][1] = 0.9937
    assert main(words) == 0
    report = (tmp_path / "out" / "mnist.md").read_text()
    assert "| Tesla T4, published (Fenwicks tutorial 9, 2019) | 99.2 % | |" in report
    assert "| 2 CPU cores, 10 epochs, measured | 99.37 % | 60 s |" in report
    scripted["trainer"][1] = 0.9919
    assert main(words) == 1


def test_a_chart_has_a_line_for_each_series_with_two_points():
    svg = draw("a < b", {"one": [(0, 1.0), (10, 2.0)], "two": [(0, 1.0)], "<three>": [(0, 5.0), (5, 5.0)]})
    lines = [each for each in ET.fromstring(svg).iter() if each.tag.endswith("polyline")]  # noqa: S314 - our own
    assert len(lines) == 4, "each line, and its mark in the legend"
    assert draw("empty", {"two": [(0, 1.0)]}) is None
