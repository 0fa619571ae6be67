import math
import time
from collections.abc import Sequence
from itertools import count
from statistics import fmean, stdev

import tensorflow as tf

from gradient_trainer.measurement.pace import Pace

from .batches import Batches
from .callbacks import Hooks, Logs
from .learner import LOSS, Learner
from .pipeline import BUFFERED, Examples, repeat_first, training_batches

_ROUNDS, _FEWEST_ROUNDS = 8, 4
_STUDENT = {4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
"""Quantile of Student's distribution for a 95 % interval of the mean of so many rounds."""
_STEPS = 10  # steps of each kind that a round measures, at the fewest
SECONDS, _MOST_SECONDS, _SHARE = 15.0, 60.0, 0.05
"""Most time to measure for: that share of the training's, within these bounds."""
_MOST_ERROR = 0.15  # half width of the interval above which the share says nothing


def measure_input_wait(
    learner: Learner,
    examples: Examples,
    batches: Batches,
    pace: Pace,
    steps_per_execution: int,
    augmentations: Sequence[str],
    trained_seconds: float,
) -> dict[str, float | None]:
    """Compare the pace on batches as they arrive with that on one that is prepared beforehand, in turns.

    Other programs slow both kinds alike, and the spread between the turns tells how sure the share is. It changes the
    model. Timing each wait would not do: an accelerator works on while the host waits. Returns
    `steps_per_second_without_input`; `wait_share`, 0..1, and `wait_share_error`, half the width of its 95 % interval.
    None if there is no time for enough steps, or the interval is too wide.
    """
    measured = pace.spread(1)
    idle = 1 + math.ceil(BUFFERED / steps_per_execution)  # what is prepared when a turn begins, and its start
    steps = steps_per_execution * math.ceil(_STEPS / steps_per_execution)
    each_round = 2 * (steps + idle * steps_per_execution)
    limit = min(_MOST_SECONDS, max(SECONDS, _SHARE * trained_seconds))
    rounds = min(_ROUNDS, int(limit * measured["median"] / each_round)) if measured else 0
    if rounds < _FEWEST_ROUNDS:
        return dict.fromkeys(("steps_per_second_without_input", "wait_share", "wait_share_error"))
    first = count(0, steps + idle * steps_per_execution)

    def seconds(*, prepared: bool) -> float:
        begin = next(first)
        last = begin + steps + idle * steps_per_execution
        live = training_batches(examples, batches, begin, begin + 1 if prepared else last, augmentations)
        source = repeat_first(live, last - begin) if prepared else live
        return _time_steps(learner, source, idle * steps_per_execution, last - begin)

    return _judge([(seconds(prepared=False), seconds(prepared=True)) for _ in range(rounds)], steps)


def _judge(pairs: Sequence[tuple[float, float]], steps: int) -> dict[str, float | None]:
    """Return the figures from the seconds of each turn, live and prepared."""
    shares = [1 - prepared / live for live, prepared in pairs]
    error = _STUDENT[len(pairs)] * stdev(shares) / math.sqrt(len(pairs))
    is_known = error <= _MOST_ERROR
    return {
        "steps_per_second_without_input": steps / fmean(prepared for _, prepared in pairs),
        "wait_share": min(1.0, max(0.0, fmean(shares))) if is_known else None,
        "wait_share_error": error if is_known else None,
    }


def _time_steps(learner: Learner, source: tf.data.Dataset, begin: int, end: int) -> float:
    """Train on a source, and return the seconds from one of its steps to another."""
    times: list[float] = []

    def after_steps(done: int, logs: Logs) -> None:
        if done in (begin, end):
            float(logs[LOSS])  # waits for the device
            times.append(time.perf_counter())

    learner.fit(source, Hooks(learner.model, after_steps, lambda: None))
    return times[1] - times[0]
