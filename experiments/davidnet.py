"""DavidNet on 10,000 images of CIFAR-10: the trainer beside plain Keras, from the same seeds."""

import json
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from experiments.chart import draw
from experiments.programs import run, run_trainer

PLAIN = Path(__file__).with_name("plain_davidnet.py")
TRAINER, KERAS = "trainer", "plain Keras"
LOG_STEPS = 10
_PEAK, _BATCH = 0.4, 512
_WARM_UP_SHARE = 5 / 24
"""The recipe: a learning rate of 0.4 for a batch of 512, which rises for 5 of 24 epochs."""

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

    @property
    def warm_up(self) -> str:
        """The span in which the rate rises."""
        return f"{self.epochs * _WARM_UP_SHARE:.3f}e"


def compare(setting: Setting, data: Path, output: Path) -> tuple[str, bool]:
    """Train with both programs; return the report, and whether they agree within the spread of seeds."""
    runs: dict[str, list[Run]] = {TRAINER: [], KERAS: []}
    for seed in range(1, setting.seeds + 1):
        for program, train in ((TRAINER, _train), (KERAS, _train_plain)):
            began = time.perf_counter()
            done = train(setting, data, output, seed)
            done["seconds"] = time.perf_counter() - began
            runs[program].append(done)
            print(f"{program}, seed {seed}: test {done['test_accuracy']:.2%} in {done['seconds']:.0f} s", flush=True)
            # After each, so that a long run that is stopped leaves what it has.
            (output / "davidnet.json").write_text(json.dumps(runs))
    for name, title in (("losses", "DavidNet: training loss"), ("curve", "DavidNet: validation accuracy")):
        every = {f"{program}, seed {n}": one[name] for program, of in runs.items() for n, one in enumerate(of, 1)}
        svg = draw(title, every)
        if svg:
            (output / f"davidnet-{name}.svg").write_text(svg)
    return _report(setting, runs)


def _train(setting: Setting, data: Path, output: Path, seed: int) -> Run:
    flags = ["--model", "davidnet-cifar10", "--data", str(data / "cifar10-subset.zip"), "--augment", "none"]
    flags += ["--epochs", str(setting.epochs), "--batch-size", str(setting.batch_size), "--warm-up", setting.warm_up]
    flags += ["--learning-rate", str(setting.rate), "--log-steps", str(LOG_STEPS)]
    folder = output / "davidnet"
    result = run_trainer(folder, data, flags, seed=seed)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {
        "curve": [(line["step"], line["val_accuracy"]) for line in lines if "val_accuracy" in line],
        # The first step of a run is reported besides.
        "losses": [(line["step"], line["loss"]) for line in lines if "loss" in line and line["step"] > 1],
        "test_accuracy": result["test_accuracy"],
    }


def _train_plain(setting: Setting, data: Path, output: Path, seed: int) -> Run:  # noqa: ARG001 - as _train
    words = [setting.epochs, setting.batch_size, setting.rate, setting.warm_up, seed, LOG_STEPS]
    printed = run([str(PLAIN), str(data / "cifar10-subset.zip"), *map(str, words)])
    done: Run = json.loads(printed.splitlines()[-1])
    return done


def _report(setting: Setting, runs: dict[str, list[Run]]) -> tuple[str, bool]:
    tests = {program: [one["test_accuracy"] for one in of] for program, of in runs.items()}
    apart = abs(median(tests[TRAINER]) - median(tests[KERAS]))
    spread = max(max(values) - min(values) for values in tests.values())
    agreed = apart <= spread
    settings = (
        f"Epochs: {setting.epochs}, batch {setting.batch_size}, learning rate {setting.rate:g}, no augmentation, "
        f"{setting.seeds} seeds: median (least to largest)."
    )
    result = (
        f"The medians of the test accuracy are {100 * apart:.2f} points apart, the seeds of one program up to "
        f"{100 * spread:.2f}: {'within the spread' if agreed else 'OUTSIDE the spread'}."
    )
    lines = [
        "## DavidNet on 10,000 images of CIFAR-10",
        "",
        settings,
        "",
        f"| step | | {TRAINER} | {KERAS} |",
        "|--:|---|--:|--:|",
    ]
    for name, label, places in (("losses", "training loss", ".3f"), ("curve", "validation accuracy", ".2%")):
        columns = [_by_step(runs[program], name) for program in (TRAINER, KERAS)]
        lines += [
            f"| {step} | {label} | {' | '.join(_spread(column[step], places) for column in columns)} |"
            for step in sorted(columns[0].keys() & columns[1].keys())
        ]
    cells = " | ".join(_spread(tests[program], ".2%") for program in (TRAINER, KERAS))
    seconds = " | ".join(_spread([one["seconds"] for one in runs[program]], ".0f") for program in (TRAINER, KERAS))
    lines += [
        f"| end | test accuracy | {cells} |",
        f"| end | seconds | {seconds} |",
        "",
        result,
        "",
    ]
    return "\n".join(lines), agreed


def _by_step(runs: list[Run], name: str) -> dict[int, list[float]]:
    found = defaultdict(list)
    for one in runs:
        for step, value in one[name]:
            found[step].append(value)
    return found


def _spread(values: list[float], places: str) -> str:
    return f"{median(values):{places}} ({min(values):{places}} to {max(values):{places}})"
