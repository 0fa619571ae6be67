"""Early stops: whether a trial that runs is to go on, by its newest values and those of the others."""

import math
from collections.abc import Sequence
from statistics import median

from core.db.models.sweeps import SweepTrial
from core.jobs.templates.sweeps.plan import Plan

REDUCTION = 3  # of the trials that come to a rung of ASHA, the best third goes on; the next rung is three times as far
_LEAST_FOR_MEDIAN = 5  # complete trials


def judge(plan: Plan, trial: SweepTrial, trials: Sequence[SweepTrial], seen: int) -> str | None:
    """Return why a trial is to be stopped, or None.

    `seen`: how many of its values were there before those that came now. Which value of a trial is its last is not
    known: unless a complete trial has more, it is judged when another one follows the value that is judged.
    """
    count = len(trial.history)
    step = _newest_rung(plan.stop_after, count) if plan.stop == "asha" else count
    longest = max((len(other.history) for other in trials if other.state == "complete"), default=0)
    if step < plan.stop_after or step <= trial.judged or (count >= longest and seen < step):
        return None
    trial.judged = step
    if trial.history[-1] is None:
        return f"value {count} of {plan.metric} is not a finite number"
    sign = 1 if plan.goal == "min" else -1
    losses = [math.inf if value is None else sign * value for value in trial.history]
    peers = [
        math.inf if (value := other.history[step - 1]) is None else sign * value
        for other in trials
        if len(other.history) >= step and (plan.stop == "asha" or other.state == "complete")
    ]
    if plan.stop == "asha":
        if len(peers) < REDUCTION or min(losses[step - 1], losses[-1]) <= sorted(peers)[len(peers) // REDUCTION - 1]:
            return None
        worst = f"value {step} of {plan.metric}, {sign * losses[step - 1]:g}"
        return f"{worst}, is not in the best third of {len(peers)}"
    if len(peers) < _LEAST_FOR_MEDIAN or min(losses) <= median(peers):
        return None
    return (
        f"value {step} of {plan.metric} is {sign * losses[-1]:g}, worse than the median of {len(peers)} complete trials"
    )


def _newest_rung(first: int, count: int) -> int:
    """Return the last of the rungs `first`, three times that, and so on, up to a number of values; 0: none."""
    rung = 0
    following = first
    while following <= count:
        rung, following = following, following * REDUCTION
    return rung
