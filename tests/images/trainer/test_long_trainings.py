"""The reports of `make experiments`, with scripted trainings."""

import io
import itertools
import json
import re
import zipfile

import numpy as np
import pytest
from PIL import Image

from experiments import davidnet
from experiments.__main__ import main


@pytest.fixture
def scripted(monkeypatch, tmp_path):
    """Trainings that reach known accuracies: the trainer's by seed, and the independent program's beside them."""
    accuracies = {"trainer": {1: 0.50, 2: 0.54}, "alone": {"1": 0.53, "2": 0.51}, "step": 1.004}

    def train(output, data, flags, *, seed, resume=False):
        assert data == tmp_path
        assert "mnist" in flags or "torch-nesterov" in flags
        (output / "checkpoints").mkdir(exist_ok=True, parents=True)
        (output / "checkpoints" / "step-00000001.npz").touch()
        lines = [{"step": step, "loss": 1.0} for step in (1, 2, 3, 4)] if resume else []
        lines += [{"step": 10, "loss": 2.0}, {"step": 18, "loss": 1.5, "val_accuracy": 0.4}]
        (output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"test_accuracy": accuracies["trainer"][seed], "seconds": 60.0, "device": "2 CPU cores"}

    def run_alone(folder, words):
        assert (folder / "main.py").is_file()
        assert words[0] == str(tmp_path / "cifar10-subset.zip")
        if "--checkpoint" in words:
            return {"losses": [[2, 1.0], [3, 1.0], [4, accuracies["step"]]]}
        options = dict(zip(words[1::2], words[2::2], strict=True))
        assert options.items() >= {"--epochs": "2", "--batch-size": "256", "--rate": "0.2"}.items()
        accuracy = accuracies["alone"][options["--seed"]]
        return {"losses": [[10, 2.1], [18, 1.4]], "curve": [[18, 0.45]], "test_accuracy": accuracy}

    monkeypatch.setattr(davidnet, "run_trainer", train)
    monkeypatch.setattr("experiments.__main__.run_trainer", train)
    monkeypatch.setattr(davidnet, "run_alone", run_alone)
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
    assert "| 4 | 1.00000 | 1.00400 | 4.0e-03 | 5e-03 |" in report
    assert len(json.loads((tmp_path / "out" / "davidnet.json").read_text())["trainer"]) == 2
    scripted["step"] = 1.006
    assert main([*words, "--only", "davidnet", "--epochs", "2"]) == 1
    assert "The steps are NOT the same." in (tmp_path / "out" / "davidnet.md").read_text()
    scripted["step"] = 1.0
    scripted["alone"] |= {"1": 0.6, "2": 0.61}
    assert main([*words, "--only", "davidnet", "--epochs", "2"]) == 1
    assert "OUTSIDE the spread" in (tmp_path / "out" / "davidnet.md").read_text()


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.timeout(3600)
@pytest.mark.usefixtures("trainer_packages")
def test_an_independent_program_takes_the_same_steps(tmp_path):
    write_images(tmp_path / "cifar10-subset.zip")
    words = ["--only", "davidnet", "--data", str(tmp_path), "--epochs", "1", "--batch-size", "16", "--seeds", "1"]
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    report = (tmp_path / "out" / "davidnet.md").read_text()
    assert "The steps are the same, but for rounding." in report
    assert re.search(r"\| end \| test accuracy \| \S+% .* \| \S+% ", report)
    imported = set(re.findall(r"^(?:import|from) (\w+)", (davidnet.INDEPENDENT / "main.py").read_text(), re.MULTILINE))
    assert imported <= {"PIL", "argparse", "io", "jax", "json", "numpy", "pathlib", "typing", "zipfile"}


def write_images(target):
    """Ten images of each of ten colours, with noise."""
    random = np.random.default_rng(1)
    colours = random.integers(60, 200, (10, 3))
    with zipfile.ZipFile(target, "w") as archive:
        for part, label, number in itertools.product(("train", "test"), range(10), range(10)):
            pixels = np.clip(colours[label] + random.normal(0, 40, (32, 32, 3)), 0, 255).astype(np.uint8)
            encoded = io.BytesIO()
            Image.fromarray(pixels).save(encoded, "JPEG", quality=95)
            archive.writestr(f"{part}/class-{label}/{number:04d}.jpg", encoded.getvalue())


def test_mnist_is_set_beside_the_published_accuracy(scripted, tmp_path):
    words = ["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--only", "mnist"]
    scripted["trainer"][1] = 0.9937
    assert main(words) == 0
    report = (tmp_path / "out" / "mnist.md").read_text()
    assert "| Tesla T4, published (Fenwicks tutorial 9, 2019) | 99.2 % | |" in report
    assert "| 2 CPU cores, 10 epochs, measured | 99.37 % | 60 s |" in report
    scripted["trainer"][1] = 0.9919
    assert main(words) == 1
