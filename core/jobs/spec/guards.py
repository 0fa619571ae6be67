"""The options `onIdle`, `onStall`, `onDiverge` and `onDisk`: what the worker does when a running job goes wrong."""

from typing import NamedTuple

from core.errors import SpecInvalid
from core.formatting import parse_duration
from core.jobs.spec.image_options import quoted

EVENT = "guard"  # kind of the event of a guard that fires; its reason names what was found
LOG_REASON = "log"
LEAST_IDLE_SECONDS = 60  # a shorter time has too few samples of usage
_MAX_IDLE_SECONDS = 30 * 24 * 3600


class GuardAction(NamedTuple):
    action: str  # notify, stop or retry
    amount: float  # from which on it is done; see `Guard.unit`


class Guard(NamedTuple):
    option: str
    reason: str  # also the name of its event, after `job.`
    unit: str  # TIME, PAUSES or PERCENT, before which a colon stands, or "" if there is nothing to choose
    default: float  # amount of an action without one; 0: it needs one
    least: float
    most: float
    actions: tuple[str, ...]


GUARDS = {
    "on_idle": Guard("onIdle", "idle", "TIME", 0, LEAST_IDLE_SECONDS, _MAX_IDLE_SECONDS, ("notify", "stop")),
    "on_stall": Guard("onStall", "stalled", "PAUSES", 10, 2, 1000, ("notify", "stop", "retry")),
    "on_diverge": Guard("onDiverge", "diverged", "", 1, 1, 1, ("notify", "stop")),
    "on_disk": Guard("onDisk", "disk_nearly_full", "PERCENT", 90, 50, 99, ("notify", "stop", "retry")),
}
"""By the field of `JobSpec`."""


def parse_guard(field: str, text: str | None, max_attempts: int | None = None) -> tuple[GuardAction, ...]:
    """Read `notify:30m,stop:2h`: actions, each with the amount from which on it is done."""
    guard, actions = GUARDS[field], {}
    for item in (text or "").split(",") if text is not None else ():
        action, colon, amount = item.strip().partition(":")
        if action not in guard.actions or action in actions or bool(colon) > bool(guard.unit and amount):
            unit = f":{guard.unit}" if guard.unit else ""
            wanted = ", ".join(f"{name}{unit}" for name in guard.actions)
            raise SpecInvalid(f"{quoted(item)}: use each of {wanted} at most once.", field=guard.option)
        actions[action] = _parse_amount(guard, item, amount)
    if {"stop", "retry"} <= actions.keys():
        raise SpecInvalid("Has both stop and retry, of which each ends the attempt. Give one.", field=guard.option)
    if "retry" in actions and max_attempts == 1:
        raise SpecInvalid("retry needs another attempt: set maxAttempts above 1.", field=guard.option)
    return tuple(GuardAction(*pair) for pair in actions.items())


def _parse_amount(guard: Guard, item: str, text: str) -> float:
    amount: float | None = guard.default or None
    if text:
        number = text.removesuffix({"PAUSES": "x", "PERCENT": "%"}.get(guard.unit, ""))
        is_number = number.isascii() and number.isdecimal() and len(number) < len("1000000000")
        amount = float(number) if is_number else parse_duration(text) if guard.unit == "TIME" else None
    if amount is None:
        example = {"TIME": "30m", "PAUSES": "10", "PERCENT": "90"}.get(guard.unit, "")
        raise SpecInvalid(f"{quoted(item)} has no {guard.unit}, such as :{example}.", field=guard.option)
    if not guard.least <= amount <= guard.most:
        few = ": less has too few samples" if guard.unit == "TIME" and amount < guard.least else ""
        raise SpecInvalid(
            f"{quoted(item)} is out of range: {guard.least:,} to {guard.most:,}"
            f"{' seconds' if guard.unit == 'TIME' else ''}{few}.",
            field=guard.option,
        )
    return amount
