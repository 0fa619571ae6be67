"""The share of a training's time in which it waits for its input."""

import math
import time
from collections.abc import Sequence

from gradient_trainer.measurement.pace import Pace

from .batches import Batches
from .callbacks import Hooks, Logs
from .learner import LOSS, Learner
from .pipeline import Examples, repeat_first, training_batches

_SECONDS = 3.0
_MIN_STEPS, _MAX_STEPS = 2, 50


def measure_input_wait(
    learner: Learner,
    examples: Examples,
    batches: Batches,
    pace: Pace,
    steps_per_execution: int,
    augmentations: Sequence[str],
) -> dict[str, float | None]:
    """Train on one batch that is prepared beforehand, and compare the pace with that of the training.

    It changes the model. Timing each wait would not do: an accelerator works on while the host waits.

    Returns:
        `steps_per_second_without_input` and `wait_share`, 0..1; None if the training was too short to have a pace.
    """
    measured = pace.spread(1)
    if measured is None:
        return {"steps_per_second_without_input": None, "wait_share": None}
    steps = min(_MAX_STEPS, max(_MIN_STEPS, int(_SECONDS * measured["median"])))
    executions = 1 + math.ceil(steps / steps_per_execution)
    times: list[float] = []

    def after_steps(done: int, logs: Logs) -> None:
        if done in (steps_per_execution, executions * steps_per_execution):
            float(logs[LOSS])  # waits for the device
            times.append(time.perf_counter())

    first = training_batches(examples, batches, 0, 1, augmentations)
    learner.fit(repeat_first(first, executions * steps_per_execution), Hooks(learner.model, after_steps, lambda: None))
    without = (executions - 1) * steps_per_execution / (times[1] - times[0])
    return {
        "steps_per_second_without_input": without,
        "wait_share": max(0.0, 1 - measured["median"] / without),
    }
