"""The events that receivers are told of, and the option `notify` of jobs: `NAME` or `NAME:EVENTS`."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from core.errors import SpecInvalid
from core.jobs.spec.image_options import quoted

ENDS = ("job.succeeded", "job.failed", "job.error", "job.cancelled")
_OF_JOB = ("job.running", "job.waiting", *ENDS)
_OF_ARRAY = (*ENDS, "array.ended")  # one message for all of its jobs
_OF_SWEEP = (*ENDS, "sweep.ended", "sweep.paused")
OF_WORKERS = ("worker.lost", "worker.drained", "gpu.drained")  # by themselves; of no job
EVENTS = (*_OF_JOB, "array.ended", "sweep.ended", "sweep.paused", "schedule.missed", *OF_WORKERS)
DEFAULT_EVENTS = tuple(event for event in EVENTS if event not in {"job.running", "job.waiting", *OF_WORKERS})
OF_KIND = {"job": _OF_JOB, "array": _OF_ARRAY, "sweep": _OF_SWEEP, "schedule": (*_OF_JOB, "schedule.missed")}
"""The events that can come of a job or a set of jobs."""
_UNMEASURED = ("job.stalled", "job.log", "job.cost", "budget.50", "budget.80", "budget.100")
MAX_RECEIVERS = 10  # of one job
RECEIVER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")


def check_events(patterns: Sequence[str], field: str) -> list[str]:
    """Refuse names and patterns of events that never occur; return them without repetition."""
    for pattern in patterns:
        if matches([pattern], EVENTS):
            continue
        if matches([pattern], _UNMEASURED):
            raise SpecInvalid(
                f"{quoted(pattern)} is not offered yet: this release does not detect it. Use {', '.join(EVENTS)}.",
                field=field,
            )
        near = get_close_matches(pattern, EVENTS, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Use {', '.join(EVENTS)}, or a pattern such as job.*."
        raise SpecInvalid(f"{quoted(pattern)} is not an event. {hint}", field=field)
    return list(dict.fromkeys(patterns))


def matches(patterns: Iterable[str], events: Iterable[str]) -> bool:
    """Return whether a pattern is one of the events, or ends in `*` and is the beginning of one."""
    return any(
        event.startswith(pattern[:-1]) if pattern.endswith("*") else event == pattern
        for event in events
        for pattern in patterns
    )


def parse_notify(items: Sequence[str]) -> dict[str, list[str] | None]:
    """Return the events by receiver that a job names; None: those that the receiver has by itself."""
    receivers: dict[str, list[str] | None] = {}
    for item in items:
        name, colon, events = item.partition(":")
        if not RECEIVER_NAME.match(name) or "://" in item:
            raise SpecInvalid(
                f"{quoted(name)} is not NAME or NAME:EVENTS, such as slack or slack:job.failed,job.error. Save a URL "
                "once, with `gradient-cli notifications create NAME`: it would be stored with the job.",
                field="notify",
            )
        if name in receivers:
            raise SpecInvalid(f"Names {name} twice. Give its events once, separated by commas.", field="notify")
        wanted = [event.strip() for event in events.split(",")]
        receivers[name] = check_events(wanted, "notify") if colon else None
    if len(receivers) > MAX_RECEIVERS:
        raise SpecInvalid(f"{len(receivers)} receivers; at most {MAX_RECEIVERS} are allowed.", field="notify")
    return receivers
