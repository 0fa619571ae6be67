"""Error of a prediction: a training on one CPU of this machine predicts its pace on two, which is then measured.

Once as on an installation that has compared nothing, and once corrected by what the other models' runs measured, as
the service does after a comparison.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from typing import Any

from bench import bounds
from bench.measure import Goal, MissingRequirement, Result, Series, Size
from core.comparison.measurement import RunFigures
from core.comparison.peaks import Peaks
from core.comparison.prediction import Estimate, predict_step

_PEAKS = str(Path(__file__).parents[1] / "floors" / "peaks.py")
_STEPS, _QUICK_STEPS, _WARM_UP = 24, 3, 6
_MODELS = ("mnist-cnn", "resnet32-cifar10")
_BATCH = "64"


@dataclass(frozen=True, slots=True)
class _Outcome:
    """One model on one and on two CPUs.

    Attributes:
        model: Its name.
        paces: Series of its pace on one CPU, and on two.
        step: Predicted seconds of a step on two.
    """

    model: str
    paces: list[Series]
    step: Estimate

    @property
    def ratio(self) -> float:
        """Measured over predicted time, of the fastest step."""
        return 1 / max(self.paces[1].samples) / self.step.value


def run(size: Size) -> Result:
    """Measure peaks and paces of one and of two CPUs in turn; judge the predicted against the measured speed-up."""
    cpus = sorted(os.sched_getaffinity(0))[:2]
    if find_spec("tensorflow") is None or len(cpus) < 2:  # noqa: PLR2004 - one and two CPUs
        raise MissingRequirement("it needs two CPUs and TensorFlow, which the extra `trainer` has")
    outcomes = [_measure(model, cpus, size) for model in _MODELS[: size.pick(len(_MODELS), 1)]]
    series, goals = [], []
    for outcome in outcomes:
        series += outcome.paces
        steps = {"": outcome.step}
        if others := [other.ratio for other in outcomes if other is not outcome]:
            steps[", corrected"] = outcome.step.scaled(fmean(others))
        for how, step in steps.items():
            predicted = Series(f"{outcome.model}, predicted for 2 CPUs{how}", "steps/s")
            predicted.begin_round()
            predicted.add(1 / step.value)
            series.append(predicted)
            error = abs(predicted.samples[0] / max(outcome.paces[1].samples) - 1)
            what = f"error of the prediction for two CPUs from one, {outcome.model}{how}"
            goals.append(Goal(what, error, bounds.PREDICTION_ERROR))
    return Result(series, goals)


def _measure(model: str, cpus: list[int], size: Size) -> _Outcome:
    paces = [Series(f"{model}, {count} of 2 CPUs", "steps/s") for count in (1, 2)]
    peaks: list[list[Peaks]] = [[], []]
    alone: list[RunFigures] = []
    for _ in range(size.rounds):
        for count, (pace, measured) in enumerate(zip(paces, peaks, strict=True), 1):
            with _limited_to(cpus[:count]):
                measured.append(_measure_peaks())
                figures = _train(model, size.pick(_STEPS, _QUICK_STEPS))
            pace.begin_round()
            pace.add(figures.steps_per_second or 0.0)
            if count == 1:
                alone.append(figures)
    # The best of all rounds: other programs of the machine only make it slower.
    first, two = (
        Peaks(
            *(
                max(getattr(machine, name) for machine in measured)
                for name in ("flops", "attainable_flops", "bandwidth")
            )
        )
        for measured in peaks
    )
    fastest = max(alone, key=lambda run: run.steps_per_second or 0.0)
    return _Outcome(model, paces, predict_step(fastest, first, two))


@contextmanager
def _limited_to(cpus: list[int]) -> Iterator[None]:
    """Limit this process to some CPUs, and those that it starts."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _measure_peaks() -> Peaks:
    gflops, bandwidth = map(float, _run([_PEAKS]).split())
    return Peaks(gflops * 1e9, gflops * 1e9, bandwidth * 1e9)


def _train(model: str, steps: int) -> RunFigures:
    """Train, and return what a job's metrics would tell, with the pace of the fastest step."""
    with tempfile.TemporaryDirectory() as output:
        metrics = str(Path(output) / "metrics.jsonl")
        flags = ["--model", model, "--data", "digits", "--batch-size", _BATCH, "--steps", str(_WARM_UP + steps)]
        flags += ["--schedule", "constant", "--warm-up", "0", "--no-deterministic"]
        _run(["-m", "gradient_trainer", *flags, "--augment", "none", "--log-steps", "1", "--output", output], metrics)
        summary: dict[str, Any] = json.loads((Path(output) / "summary.json").read_text())
        lines = [json.loads(line) for line in Path(metrics).read_text().splitlines()]
    return RunFigures(
        steps_per_second=max(line.get("steps_per_second", 0.0) for line in lines),
        input_wait_share=summary["input"]["wait_share"],
        flops_per_step=summary["step_cost"]["flops"],
        bytes_per_step=summary["step_cost"]["bytes"],
    )


def _run(arguments: list[str], metrics: str = os.devnull) -> str:
    env = os.environ | {"KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "2", "GRADIENT_METRICS_FILE": metrics}
    done = subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True, check=True)
    return done.stdout
