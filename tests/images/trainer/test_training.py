import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.trainer_process import SMALL_MODEL, fork_trainer

pytestmark = pytest.mark.tensorflow

RESUMING = re.compile(r"^resuming from step (\d+)$", re.MULTILINE)
DIGITS = ("--data", "digits", "--batch-size", "32", "--seed", "1", "--log-steps", "5", "--checkpoint-steps", "7")
TARGET = ("--target-accuracy", "0.05")
STEPS = 84


@dataclass
class Ended:
    exit_code: int
    text: str
    output: Path

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def result(self) -> dict:
        return json.loads(self.lines[-1].removeprefix("RESULT "))

    def metrics(self) -> list[dict]:
        return [json.loads(line) for line in (self.output / "metrics.jsonl").read_text().splitlines()]


def run_trainer(output: Path, *flags: str) -> Ended:
    """Run the program as a user would."""
    command = [sys.executable, "-m", "gradient_trainer", "--output", str(output), *flags]
    env = os.environ | {"GRADIENT_METRICS_FILE": str(output / "metrics.jsonl")}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return Ended(done.returncode, done.stdout, output)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Ended:
    folder = tmp_path_factory.mktemp("whole")
    output = folder / "outputs"
    every = ["--output", str(output), *DIGITS, "--epochs", "2"]
    done = fork_trainer(every, folder, {"GRADIENT_METRICS_FILE": str(output / "metrics.jsonl")})
    return Ended(done.returncode, done.stdout, output)


@pytest.fixture(scope="module")
def train_small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    (folder / "small.py").write_text(SMALL_MODEL)

    def train(
        output: Path,
        *flags: str,
        model: Path | str = folder / "small.py",
        epochs: int | None = 2,
        stop_at: str | None = None,
        **environ: str,
    ) -> Ended:
        length = ["--epochs", str(epochs)] if epochs else []
        every = ["--model", str(model), "--output", str(output), *DIGITS, *length, *flags]
        done = fork_trainer(every, folder, environ, stop_at)
        return Ended(done.returncode, done.stdout, output)

    return train


@pytest.fixture(scope="module")
def small(train_small, tmp_path_factory) -> Ended:
    output = tmp_path_factory.mktemp("small_whole") / "outputs"
    return train_small(output, *TARGET, GRADIENT_METRICS_FILE=str(output / "metrics.jsonl"))


@pytest.fixture(scope="module")
def stopped(train_small, tmp_path_factory) -> Ended:
    return train_small(tmp_path_factory.mktemp("stopped") / "outputs", stop_at="step 10/")


def test_digits_are_learned(uninterrupted):
    assert uninterrupted.exit_code == 0, uninterrupted.text
    assert uninterrupted.result["test_accuracy"] >= 0.97
    assert uninterrupted.result["steps_per_second"] > 0
    assert uninterrupted.result["examples_per_second"] == pytest.approx(32 * uninterrupted.result["steps_per_second"])


def test_the_terminal_shows_only_our_own_lines(uninterrupted):
    ours = r"data|model|optimizer|training|output|step|epoch|test|pace|time|outputs|RESULT|$"
    assert [line for line in uninterrupted.lines if not re.match(ours, line)] == []


def test_metrics_tell_the_whole_training(uninterrupted):
    metrics = uninterrupted.metrics()
    losses = {row["step"]: row["loss"] for row in metrics if "loss" in row}
    assert set(range(5, STEPS + 1, 5)) <= losses.keys()
    assert losses[STEPS] < 0.2 < losses[1]
    assert sum("val_accuracy" in row for row in metrics) == 2
    assert metrics[-1]["test_accuracy"] == uninterrupted.result["test_accuracy"]
    last = next(row for row in reversed(metrics) if "loss" in row)
    assert {"accuracy", "learning_rate", "steps_per_second", "examples_per_second", "time"} <= last.keys()


def test_a_model_file_of_the_user_is_trained(small):
    assert small.exit_code == 0, small.text
    assert "5,066 parameters" in small.text
    assert small.result["steps"] == STEPS


def test_sigterm_saves_and_exits_143(stopped):
    assert stopped.exit_code == 143, stopped.text
    saved = re.fullmatch(r"stopped by SIGTERM: checkpoint saved at step (\d+); .*", stopped.lines[-1])
    assert saved is not None
    assert 10 <= int(saved[1]) < STEPS
    assert (stopped.output / "checkpoints" / f"step-{int(saved[1]):08d}.npz").is_file()
    assert not (stopped.output / "result.json").exists()


def test_a_stopped_training_resumes_past_damage_and_ends_as_if_never_stopped(stopped, small, train_small, tmp_path):
    output = tmp_path / "outputs"
    shutil.copytree(stopped.output, output)
    before, newest = sorted((output / "checkpoints").glob("step-*.npz"))
    newest.write_bytes(newest.read_bytes()[:-1000])
    metrics_file = output / "metrics.jsonl"
    metrics_file.write_text('{"step": 1}\n')

    resumed = train_small(output, GRADIENT_METRICS_FILE=str(metrics_file))

    assert resumed.exit_code == 0, resumed.text
    assert f"set aside as {newest.with_suffix('.damaged')}" in resumed.text
    assert int(RESUMING.search(resumed.text)[1]) == int(before.stem.removeprefix("step-"))
    for name in ("steps", "test_loss", "test_accuracy", "val_loss"):
        assert resumed.result[name] == small.result[name]
    assert resumed.metrics()[0] == {"step": 1}, "metrics are appended"
    assert resumed.metrics()[-1]["step"] == STEPS


def test_a_resumed_training_validates_each_epoch_and_reports_the_target_once(small, train_small, tmp_path):
    output = tmp_path / "outputs"
    shutil.copytree(small.output, output)

    def reports(ended):
        """Return the steps of validations and of the target so far, and the target."""
        validated = [row["step"] for row in ended.metrics() if "val_accuracy" in row]
        reached = [row["target_step"] for row in ended.metrics() if "target_step" in row]
        return validated, reached, json.loads((ended.output / "summary.json").read_text())["target"]

    validated, reached, target = reports(small)
    assert (validated, reached, target["step"]) == ([42, 84], [42], 42)
    flags = ("--steps", "100", *TARGET)
    resumed = train_small(output, *flags, epochs=None, GRADIENT_METRICS_FILE=str(output / "metrics.jsonl"))
    assert resumed.exit_code == 0, resumed.text
    assert int(RESUMING.search(resumed.text)[1]) == STEPS, "from its newest checkpoint"
    # The checkpoint of an epoch's end is older than its validation, which is repeated.
    assert reports(resumed) == ([42, 84, 84, 100], [42], target)


def test_checkpoints_of_another_training_are_refused(stopped, train_small):
    refused = train_small(stopped.output, "--batch-size", "64")

    assert refused.exit_code == 2
    assert "batch-size 32 there, 64 here" in refused.lines[-1]
    assert "--restart" in refused.lines[-1]


def test_a_loss_that_is_no_number_ends_the_training_with_advice(train_small, tmp_path):
    model = tmp_path / "overflowing.py"
    model.write_text(
        "import keras\n"
        "def build(image_shape, classes):\n"
        "    layers = [keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(classes)]\n"
        "    return keras.Sequential([*layers, keras.layers.Rescaling(float('inf'))])\n"
    )
    ended = train_small(tmp_path / "outputs", model=model)

    assert ended.exit_code == 1, ended.text
    assert "the loss became nan at step 1; try a lower --learning-rate" in ended.lines[-1]
    assert list((ended.output / "checkpoints").iterdir()) == []


def test_metrics_leave_out_numbers_that_json_does_not_have(train_small, tmp_path):
    model = tmp_path / "half.py"
    model.write_text(
        "import keras\n"
        "class Half(keras.layers.Layer):\n"
        "    def call(self, inputs, training=None):\n"
        "        return inputs if training else inputs * float('inf')\n"
        "def build(image_shape, classes):\n"
        "    layers = [keras.Input(image_shape), keras.layers.Flatten(), keras.layers.Dense(classes)]\n"
        "    return keras.Sequential([*layers, Half()])\n"
    )
    metrics_file = tmp_path / "outputs" / "new" / "metrics.jsonl"
    ended = train_small(tmp_path / "outputs", "--epochs", "1", model=model, GRADIENT_METRICS_FILE=str(metrics_file))
    assert ended.exit_code == 0, ended.text
    rows = [json.loads(line) for line in metrics_file.read_text().splitlines()]
    assert [sorted(row) for row in rows if "val_accuracy" in row] == [["step", "time", "val_accuracy"]]


def test_training_and_test_in_subprocesses_give_the_same_result(small, train_small, tmp_path):
    ended = train_small(tmp_path / "outputs", "--evaluate-in-subprocess")

    assert ended.exit_code == 0, ended.text
    assert ended.result["test_loss"] == pytest.approx(small.result["test_loss"])
    assert json.loads((ended.output / "result.json").read_text()) == ended.result


def test_the_summary_has_settings_and_measurements(train_small, tmp_path):
    metrics_file = tmp_path / "metrics.jsonl"
    flags = "--target-accuracy 0.2 --peak-tflops 0.1 --steps 60 --steps-per-execution 4 --weight-decay 0.001"
    kinds = "--optimizer torch-sgd --learning-rate 0.01 --schedule piecewise --milestones 1e --warm-up 5 --augment crop"
    ended = train_small(
        tmp_path / "outputs",
        *flags.split(),
        *kinds.split(),
        "--precision",
        "mixed_bfloat16",
        epochs=None,
        GRADIENT_METRICS_FILE=str(metrics_file),
    )
    assert ended.exit_code == 0, ended.text
    assert "5,066 parameters, mixed_bfloat16, on" in ended.text
    summary = json.loads((ended.output / "summary.json").read_text())
    assert summary["training"]["steps"] == ended.result["steps"] == 60
    assert (
        summary["hyperparameters"]
        | {"optimizer": "torch-sgd", "weight_decay": 0.001, "augment": "crop", "precision": "mixed_bfloat16"}
        == summary["hyperparameters"]
    )
    pace = summary["steps_per_second"]
    assert 0 < pace["p25"] <= pace["median"] <= pace["p75"]
    assert summary["examples_per_second"]["median"] == pytest.approx(32 * pace["median"])
    assert 0 < summary["seconds"]["first_step"] <= summary["seconds"]["warm_up"] < summary["seconds"]["training"]
    share, error = summary["input"]["wait_share"], summary["input"]["wait_share_error"]
    assert (share is None) == (error is None), "not measured, or with its uncertainty"
    assert 0 <= (share or 0) < 1
    assert summary["memory"] == {"host_bytes": summary["memory"]["host_bytes"], "device_bytes": None}
    assert summary["memory"]["host_bytes"] > 100e6
    # Two dense layers, 64 weights a digit and 640 of the logits: 3 passes, 2 operations, 32 examples.
    assert summary["step_cost"]["flops"] == 3 * 2 * 32 * (64 * 64 + 64 * 10)
    flops = ended.result["steps_per_second"] * summary["step_cost"]["flops"]
    assert summary["share_of_peak"]["flops"] == pytest.approx(flops / 1e11)
    assert summary["target"]["step"] in (42, 60)
    assert summary["target"]["seconds"] > 0
    assert summary["accuracy"]["test_accuracy"] == ended.result["test_accuracy"]
    rows = [json.loads(line) for line in metrics_file.read_text().splitlines()]
    assert {"peak_host_bytes", "flops_per_step", "compile_seconds"} <= rows[-2].keys()
    assert rows[-2]["bytes_per_step"] == summary["step_cost"]["bytes"]
    assert rows[-2]["startup_seconds"] == summary["seconds"]["before_training"]
    names = ("replicas", "batch_size", "weight_decay", "compute_bits")
    assert [rows[-2][name] for name in names] == [1, 32, 0.001, 16]
    assert rows[-2]["peak_learning_rate"] == summary["hyperparameters"]["learning_rate"]
    assert rows[-2]["steps_per_epoch"] >= 1
    assert [row["learning_rate"] for row in rows if row["step"] in (40, 60) and "loss" in row] == pytest.approx(
        [0.01, 0.001]
    )


@pytest.mark.slow  # mixed_bfloat16 is that of the summary's test
@pytest.mark.parametrize("precision", ["mixed_float16", "float16", "float16_masters"])
def test_each_precision_trains(train_small, tmp_path, precision):
    ended = train_small(tmp_path / "outputs", "--precision", precision, "--steps", "20", epochs=None)
    assert ended.exit_code == 0, ended.text
    assert f"5,066 parameters, {precision}, on" in ended.text
    assert ended.result["precision"] == precision


def test_the_finder_suggests_a_rate_and_trains_nothing(train_small, tmp_path):
    ended = train_small(tmp_path / "outputs", "--find-learning-rate")
    assert ended.exit_code == 0, ended.text
    found = json.loads((ended.output / "learning_rates.json").read_text())
    assert 1e-5 < found["suggestion"] < 1
    assert len(found["rates"]) == len(found["losses"]) > 50
    assert f"suggestion     --learning-rate {found['suggestion']:g}, for adam" in ended.text
    assert {path.name for path in ended.output.iterdir()} == {"learning_rates.json"}


@pytest.mark.slow
def test_the_same_runs_with_jax(tmp_path):
    ended = run_trainer(tmp_path / "outputs", *DIGITS, "--epochs", "1", "--backend", "jax")
    assert ended.exit_code == 0, ended.text
    assert ended.result["test_accuracy"] > 0.5
    assert json.loads((ended.output / "summary.json").read_text())["step_cost"]["source"] == "xla"


@pytest.mark.slow
@pytest.mark.timeout(400)  # two starts of JAX
def test_jax_uses_as_many_devices_as_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
    words = ["--data", "digits", "--batch-size", "32", "--steps", "2", "--schedule", "one-cycle", "--backend", "jax"]
    ended = run_trainer(tmp_path / "outputs", *words, "--devices", "2")
    assert ended.exit_code == 0, ended.text
    assert ended.result["replicas"] == 2
    refused = run_trainer(tmp_path / "refused", *words, "--devices", "5")
    assert refused.exit_code == 2
    assert "--devices 5 is more than this machine has, which is 4" in refused.text
