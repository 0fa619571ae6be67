"""The training in the README, as a reader would run it."""

import json
import re
from pathlib import Path

import pytest
from support.client_shell import ClientShell

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_training_of_the_readme_leaves_metrics_and_a_model(service, tmp_path):
    (program,) = re.findall(r"```python\n(# train\.py\n.*?)```", README, re.DOTALL)
    assert len([line for line in program.splitlines() if line.strip()]) == 10
    (commands,) = re.findall(r"```\n(gradient-cli jobs run -m CPU train\.py.*?)```", README, re.DOTALL)
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "train.py").write_text(program)
    shell = ClientShell(service, folder, tmp_path)
    outputs = [shell(*line.partition("#")[0].split()[1:]) for line in commands.splitlines()]
    assert "weight 3.000, loss 0.000000" in outputs[0].stdout
    assert "loss" in outputs[1].stdout
    (model,) = folder.glob("artifacts-*/model.json")
    assert json.loads(model.read_bytes())["weight"] == pytest.approx(3, abs=0.01)
    (series,) = json.loads(shell("jobs", "metrics", "--json").stdout)["series"]
    assert series["name"] == "loss"
