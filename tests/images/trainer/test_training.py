import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow

RESUMING = re.compile(r"^resuming from step (\d+)$", re.MULTILINE)
DIGITS = ("--data", "digits", "--seed", "1", "--log-steps", "5", "--checkpoint-steps", "7")


@dataclass
class Ended:
    exit_code: int
    lines: list[str]
    output: Path

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def result(self) -> dict:
        return json.loads(self.lines[-1].removeprefix("RESULT "))

    def metrics(self) -> list[dict]:
        return [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]


def run_trainer(output: Path, *flags: str, stop_at: str | None = None) -> Ended:
    """Run the program as a user would; send SIGTERM once a line starts with `stop_at`."""
    command = [sys.executable, "-m", "gradient_trainer", "--output", str(output), *flags]
    environ = os.environ | {"GRADIENT_METRICS_FILE": str(output / "metrics.jsonl")}
    lines = []
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            if stop_at is not None and line.startswith(stop_at):
                process.send_signal(signal.SIGTERM)
                stop_at = None
    return Ended(process.returncode, lines, output)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Ended:
    return run_trainer(tmp_path_factory.mktemp("whole") / "outputs", *DIGITS)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory) -> Ended:
    return run_trainer(tmp_path_factory.mktemp("stopped") / "outputs", *DIGITS, stop_at="step 20/")


def test_digits_are_learned(uninterrupted):
    assert uninterrupted.exit_code == 0, uninterrupted.text
    assert uninterrupted.result["test_accuracy"] >= 0.97
    assert uninterrupted.result["steps_per_second"] > 0
    assert uninterrupted.result["examples_per_second"] == pytest.approx(128 * uninterrupted.result["steps_per_second"])


def test_the_terminal_shows_only_our_own_lines(uninterrupted):
    starts = ("data", "model", "training", "output", "step", "epoch", "test", "pace", "time", "outputs", "RESULT")
    assert [line for line in uninterrupted.lines if line and not line.startswith(starts)] == []


def test_outputs_agree_with_the_result_line(uninterrupted):
    output = uninterrupted.output
    assert json.loads((output / "result.json").read_text()) == uninterrupted.result
    assert (output / "model.keras").stat().st_size > 100_000
    assert list((output / "tensorboard").glob("events.out.tfevents.*"))
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == [
        "step-00000147.npz",
        "step-00000150.npz",
    ]


def test_metrics_tell_the_whole_training(uninterrupted):
    metrics = uninterrupted.metrics()
    losses = {row["step"]: row["loss"] for row in metrics if "loss" in row}
    assert set(range(5, 151, 5)) <= losses.keys()
    assert losses[150] < 0.1 < losses[1]
    assert sum("val_accuracy" in row for row in metrics) == 15
    assert metrics[-1]["test_accuracy"] == uninterrupted.result["test_accuracy"]
    last = next(row for row in reversed(metrics) if "loss" in row)
    assert {"accuracy", "learning_rate", "steps_per_second", "examples_per_second", "time"} <= last.keys()


def test_sigterm_saves_and_exits_143(stopped):
    assert stopped.exit_code == 143, stopped.text
    saved = re.fullmatch(r"stopped by SIGTERM: checkpoint saved at step (\d+); .*", stopped.lines[-1])
    assert saved is not None
    assert 20 <= int(saved[1]) < 150
    assert (stopped.output / "checkpoints" / f"step-{int(saved[1]):08d}.npz").is_file()
    assert not (stopped.output / "result.json").exists()


def test_a_stopped_training_resumes_and_ends_as_if_never_stopped(stopped, uninterrupted, tmp_path):
    output = tmp_path / "outputs"
    shutil.copytree(stopped.output, output)
    newest = max((output / "checkpoints").glob("step-*.npz"))

    resumed = run_trainer(output, *DIGITS)

    assert resumed.exit_code == 0, resumed.text
    assert int(RESUMING.search(resumed.text)[1]) == int(newest.stem.removeprefix("step-"))
    for name in ("steps", "test_loss", "test_accuracy", "val_loss"):
        assert resumed.result[name] == uninterrupted.result[name]


def test_a_damaged_newest_checkpoint_falls_back_to_the_one_before(stopped, uninterrupted, tmp_path):
    output = tmp_path / "outputs"
    shutil.copytree(stopped.output, output)
    before, newest = sorted((output / "checkpoints").glob("step-*.npz"))
    newest.write_bytes(newest.read_bytes()[:-1000])

    resumed = run_trainer(output, *DIGITS)

    assert resumed.exit_code == 0, resumed.text
    assert f"set aside as {newest.with_suffix('.damaged')}" in resumed.text
    assert int(RESUMING.search(resumed.text)[1]) == int(before.stem.removeprefix("step-"))
    assert resumed.result["test_loss"] == uninterrupted.result["test_loss"]


def test_checkpoints_of_another_training_are_refused(stopped):
    refused = run_trainer(stopped.output, *DIGITS, "--batch-size", "64")

    assert refused.exit_code == 2
    assert "batch-size 128 there, 64 here" in refused.lines[-1]
    assert "--restart" in refused.lines[-1]


def test_a_model_file_of_the_user_is_trained(tmp_path):
    model = tmp_path / "linear.py"
    model.write_text(
        "import keras\n"
        "def build(image_shape, classes):\n"
        "    layers = [keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(classes)]\n"
        "    return keras.Sequential(layers)\n"
    )
    ended = run_trainer(tmp_path / "outputs", "--model", str(model), "--data", "digits", "--epochs", "1")

    assert ended.exit_code == 0, ended.text
    assert "7,850 parameters" in ended.text
    assert ended.result["steps"] == 10


def test_a_loss_that_is_no_number_ends_the_training_with_advice(tmp_path):
    model = tmp_path / "overflowing.py"
    model.write_text(
        "import keras\n"
        "def build(image_shape, classes):\n"
        "    layers = [keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(classes)]\n"
        "    return keras.Sequential([*layers, keras.layers.Rescaling(float('inf'))])\n"
    )
    ended = run_trainer(tmp_path / "outputs", "--model", str(model), "--data", "digits")

    assert ended.exit_code == 1, ended.text
    assert "the loss became nan at step 1; try a lower --learning-rate" in ended.lines[-1]
    assert list((ended.output / "checkpoints").iterdir()) == []
