"""Pace of the trainer, against Keras' plain `model.fit` of the same model on the same examples, with two backends.

Judged by steps per second, and by the CPU time of a step: on a machine that other programs share, wall time depends on
them more than on the trainer.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from bench import bounds
from bench.measure import Goal, MissingRequirement, Result, Series, Size

_PLAIN_FIT = str(Path(__file__).parents[1] / "floors" / "plain_fit.py")
_STEPS, _QUICK_STEPS = 440, 44
_BACKENDS = ("tensorflow", "jax")
Measured = tuple[float, float]
"""Steps per second, and CPU milliseconds of a step."""


def run(size: Size) -> Result:
    """Measure both in turn, each in a process of its own; compilation and the first steps are outside."""
    if find_spec("tensorflow") is None:
        raise MissingRequirement("TensorFlow is not installed; the extra `trainer` has it")
    results = [_compare(size, backend) for backend in _BACKENDS if find_spec(backend) is not None]
    return Result(
        [measured for series, _ in results for measured in series], [goal for _, goals in results for goal in goals]
    )


def _compare(size: Size, backend: str) -> tuple[list[Series], list[Goal]]:
    programs = {"gradient_trainer": _measure_trainer, "model.fit": _measure_plain}
    names = [(name, unit) for unit in ("steps/s", "CPU ms/step") for name in programs]
    series = {(name, unit): Series(f"{name}, {backend}", unit) for name, unit in names}
    steps = size.pick(_STEPS, _QUICK_STEPS)
    for turn in range(size.rounds):
        # Each goes first in every second round.
        for name in sorted(programs, reverse=turn % 2 == 0):
            for unit, value in zip(("steps/s", "CPU ms/step"), programs[name](steps, backend), strict=True):
                series[name, unit].begin_round()
                series[name, unit].add(value)
    wall, cpu = ([series[name, unit].samples for name in programs] for unit in ("steps/s", "CPU ms/step"))
    return list(series.values()), [
        _goal(f"pace of the trainer, times model.fit, {backend}", *wall),
        _goal(f"pace of the trainer by CPU time, times model.fit, {backend}", *reversed(cpu)),
    ]


def _goal(what: str, numerators: list[float], denominators: list[float]) -> Goal:
    """Build the goal of the median ratio of two series."""
    ratios = [numerator / other for numerator, other in zip(numerators, denominators, strict=True)]
    return Goal(what, statistics.median(ratios), bounds.TRAINER_PACE, at_most=False, spread=(min(ratios), max(ratios)))


def _measure_plain(steps: int, backend: str) -> Measured:
    pace, cpu = _run([_PLAIN_FIT, str(steps)], backend).split()[-2:]
    return float(pace), float(cpu) * 1000


def _measure_trainer(steps: int, backend: str) -> Measured:
    with tempfile.TemporaryDirectory() as output:
        flags = ["--data", "digits", "--batch-size", "64", "--steps", str(steps), "--backend", backend]
        _run(["-m", "gradient_trainer", *flags, "--no-deterministic", "--output", output], backend)
        result, summary = (json.loads((Path(output) / name).read_text()) for name in ("result.json", "summary.json"))
        return float(result["steps_per_second"]), float(summary["seconds"]["cpu_per_step"]) * 1000


def _run(command: list[str], backend: str) -> str:
    env = os.environ | {"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, check=True)
    return done.stdout
