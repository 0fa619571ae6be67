"""DavidNet on 10,000 images of CIFAR-10: the trainer beside a JAX program that shares no code with it."""

import json
import shutil
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from experiments.programs import run_alone, run_trainer

INDEPENDENT = Path(__file__).with_name("jax_davidnet")
TRAINER, JAX = "trainer", "plain JAX"
LOG_STEPS = 10
TOLERANCES = {2: 1e-5, 3: 1e-3, 4: 5e-3}
"""Largest difference of the losses of the first steps, as a share: rounding grows tenfold with each step. At step 4 a
step without weight decay, without Nesterov's form, or with another constant of batch normalization differs by more."""
_PEAK, _BATCH, _DECAY = 0.4, 512, 0.0005
_RISE = 100 * 5 / 24
"""The recipe: a learning rate of 0.4 for a batch of 512, which rises for 5 of 24 epochs, and its weight decay."""
_FEW_STEPS, _FEW_RISE, _FEW_RATE, _STRONG_DECAY = 6, 50, 0.1, 0.05
"""Of the steps that are compared one by one: the decay is a hundred times the recipe's, to be seen."""

Run = dict[str, Any]
"""Of a training: `curve`, `losses` (both lists of step and value), `test_accuracy` and `seconds`."""


@dataclass(frozen=True)
class Setting:
    """The length and size of the trainings."""

    epochs: int
    batch_size: int
    seeds: int

    @property
    def rate(self) -> float:
        """The peak learning rate."""
        return _PEAK * self.batch_size / _BATCH


@dataclass(frozen=True)
class Training:
    """A training that either program can do."""

    setting: Setting
    images: Path
    length: tuple[str, int]  # `--epochs` or `--steps`, and their number
    rate: float
    seed: int = 1
    rise: float = _RISE  # percent of the steps in which the learning rate rises
    decay: float = _DECAY
    log_steps: int = LOG_STEPS

    def flags(self) -> list[str]:
        """Return the flags that both programs have."""
        batch, (length, number) = self.setting.batch_size, self.length
        return [length, str(number), "--batch-size", str(batch), "--log-steps", str(self.log_steps)]


def compare(setting: Setting, data: Path, output: Path) -> tuple[str, bool]:
    """Train with both programs; return the report, and whether they agree in steps and within the spread of seeds."""
    images = (data / "cifar10-subset.zip").absolute()
    steps_report, same_steps = _compare_steps(setting, images, output)
    runs: dict[str, list[Run]] = {TRAINER: [], JAX: []}
    for seed in range(1, setting.seeds + 1):
        training = Training(setting, images, ("--epochs", setting.epochs), setting.rate, seed)
        for program, train in ((TRAINER, partial(_train, output=output)), (JAX, _train_alone)):
            began = time.perf_counter()
            done = train(training)
            done["seconds"] = time.perf_counter() - began
            runs[program].append(done)
            print(f"{program}, seed {seed}: test {done['test_accuracy']:.2%} in {done['seconds']:.0f} s", flush=True)
            # After each, so that a long run that is stopped leaves what it has.
            (output / "davidnet.json").write_text(json.dumps(runs))
    report, agreed = _report(setting, runs)
    return f"{report}\n{steps_report}", agreed and same_steps


def _compare_steps(setting: Setting, images: Path, output: Path) -> tuple[str, bool]:
    """Let both programs go on from the same weights, on the same images; return the report, and whether they agree."""
    first = Training(setting, images, ("--steps", 1), _FEW_RATE, decay=_STRONG_DECAY, rise=100, log_steps=1)
    few = replace(first, length=("--steps", _FEW_STEPS), rise=_FEW_RISE)
    _train(first, output)
    # The trainer keeps its newest two checkpoints.
    start = shutil.copy(output / "davidnet" / "checkpoints" / "step-00000001.npz", output)
    trainer = dict(_train(few, output, resume=True)["losses"])
    alone = dict(_train_alone(few, Path(start).absolute())["losses"])
    apart = {step: abs(alone[step] / trainer[step] - 1) for step in TOLERANCES}
    agreed = all(apart[step] <= most for step, most in TOLERANCES.items())
    lines = [
        f"## Steps from the same weights, on the same images, with a weight decay of {_STRONG_DECAY}",
        "",
        f"| step | {TRAINER}: loss | {JAX}: loss | apart | tolerated |",
        "|--:|--:|--:|--:|--:|",
        *(
            f"| {step} | {trainer[step]:.5f} | {alone[step]:.5f} | {apart[step]:.1e} | {most:.0e} |"
            for step, most in TOLERANCES.items()
        ),
        "",
        f"The steps are {'the same, but for rounding' if agreed else 'NOT the same'}.",
        "",
    ]
    return "\n".join(lines), agreed


def _train(training: Training, output: Path, *, resume: bool = False) -> Run:
    flags = ["--model", "davidnet-cifar10", "--data", str(training.images), "--augment", "none", *training.flags()]
    # The publication's momentum is PyTorch's.
    flags += ["--optimizer", "torch-nesterov", "--learning-rate", str(training.rate)]
    flags += ["--warm-up", f"{training.rise}%", "--weight-decay", str(training.decay)]
    folder = output / "davidnet"
    result = run_trainer(folder, training.images.parent, flags, seed=training.seed, resume=resume)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "curve": [(line["step"], line["val_accuracy"]) for line in lines if "val_accuracy" in line],
        "losses": [(line["step"], line["loss"]) for line in lines if "loss" in line],
        "test_accuracy": result["test_accuracy"],
    }


def _train_alone(training: Training, checkpoint: Path | None = None) -> Run:
    flags = [*training.flags(), "--rate", str(training.rate), "--rise", str(training.rise)]
    flags += ["--decay", str(training.decay), "--seed", str(training.seed)]
    return run_alone(
        INDEPENDENT, [str(training.images), *flags, *(["--checkpoint", str(checkpoint)] if checkpoint else [])]
    )


def _report(setting: Setting, runs: dict[str, list[Run]]) -> tuple[str, bool]:
    tests = {program: [result["test_accuracy"] for result in of] for program, of in runs.items()}
    apart = abs(median(tests[TRAINER]) - median(tests[JAX]))
    spread = max(max(values) - min(values) for values in tests.values())
    agreed = apart <= spread or setting.seeds == 1
    settings = (
        f"Epochs: {setting.epochs}, batch {setting.batch_size}, learning rate {setting.rate:g}, no augmentation, "
        f"seeds: {setting.seeds}; median (least to largest)."
    )
    result = (
        f"The medians of the test accuracy are {100 * apart:.2f} points apart, the seeds of one program up to "
        f"{100 * spread:.2f}: {'within the spread' if agreed else 'OUTSIDE the spread'}."
        if setting.seeds > 1
        else f"The test accuracies are {100 * apart:.2f} points apart; one seed does not tell whether that is much."
    )
    lines = [
        "## DavidNet on 10,000 images of CIFAR-10",
        "",
        settings,
        "",
        f"| step | | {TRAINER} | {JAX} |",
        "|--:|---|--:|--:|",
    ]
    for name, label, places in (("losses", "training loss", ".3f"), ("curve", "validation accuracy", ".2%")):
        columns = [_by_step(runs[program], name) for program in (TRAINER, JAX)]
        lines += [
            f"| {step} | {label} | {' | '.join(_spread(column[step], places) for column in columns)} |"
            for step in sorted(columns[0].keys() & columns[1].keys())
        ]
    cells = " | ".join(_spread(tests[program], ".2%") for program in (TRAINER, JAX))
    seconds = " | ".join(_spread([result["seconds"] for result in runs[program]], ".0f") for program in (TRAINER, JAX))
    lines += [
        f"| end | test accuracy | {cells} |",
        f"| end | seconds | {seconds} |",
        "",
        result,
        "",
    ]
    return "\n".join(lines), agreed


def _by_step(runs: list[Run], name: str) -> dict[int, list[float]]:
    by_step = defaultdict(list)
    for result in runs:
        for step, value in result[name]:
            by_step[step].append(value)
    return by_step


def _spread(values: list[float], places: str) -> str:
    return f"{median(values):{places}} ({min(values):{places}} to {max(values):{places}})"
