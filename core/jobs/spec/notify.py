"""The events that receivers are told of, and the option `notify` of jobs: `NAME` or `NAME:EVENTS`."""

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any

from core.errors import SpecInvalid
from core.jobs.spec.guards import GUARDS
from core.jobs.spec.image_options import quoted
from core.jobs.spec.metric_patterns import compile_expression

ENDS = ("job.succeeded", "job.failed", "job.error", "job.cancelled")
_LOG = "job.log"
_COST = "job.cost"
_FOUND = (*(f"job.{guard.reason}" for guard in GUARDS.values()), _LOG, _COST)
_OF_JOB = ("job.running", "job.waiting", *_FOUND, *ENDS)
_OF_ARRAY = (*ENDS, *_FOUND, "array.ended")  # one message for all of its jobs
_OF_SWEEP = (*ENDS, *_FOUND, "sweep.ended", "sweep.paused")
OF_WORKERS = ("worker.lost", "worker.drained", "gpu.drained")  # by themselves; of no job
OF_BUDGETS = ("budget.50", "budget.80", "budget.100")  # of no job, either
_OF_JOBS = (*_OF_JOB, "array.ended", "sweep.ended", "sweep.paused", "schedule.missed")
EVENTS = (*_OF_JOBS, *OF_BUDGETS, *OF_WORKERS)
DEFAULT_EVENTS = tuple(event for event in EVENTS if event not in {"job.running", "job.waiting", *OF_WORKERS})
OF_KIND = {"job": _OF_JOB, "array": _OF_ARRAY, "sweep": _OF_SWEEP, "schedule": (*_OF_JOB, "schedule.missed")}
"""The events that can come of a job or a set of jobs."""
MAX_RECEIVERS = 10  # of one job
RECEIVER_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}\Z")


def check_events(patterns: Sequence[str], field: str, possible: Sequence[str] = EVENTS) -> list[str]:
    """Refuse names and patterns of events that never occur; return them without repetition."""
    for pattern in patterns:
        if matches([pattern], possible):
            continue
        near = get_close_matches(pattern, possible, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"Use {', '.join(possible)}, or a pattern such as job.*."
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
        if not RECEIVER_NAME.match(name) or events.startswith("//"):
            raise SpecInvalid(
                f"{quoted(name)} is not NAME or NAME:EVENTS, such as slack or slack:job.failed,job.error. Save a URL "
                "once, with `gradient-cli notifications create NAME`: it would be stored with the job.",
                field="notify",
            )
        if name in receivers:
            raise SpecInvalid(f"Names {name} twice. Give its events once, separated by commas.", field="notify")
        receivers[name] = _parse_events(events) if colon else None
    if len(receivers) > MAX_RECEIVERS:
        raise SpecInvalid(f"{len(receivers)} receivers; at most {MAX_RECEIVERS} are allowed.", field="notify")
    return receivers


def _parse_events(text: str) -> list[str]:
    """Read events; the expression of `job.log=EXPRESSION` is all that follows."""
    named, equals, expression = text.partition(f"{_LOG}=")
    wanted = [event.strip() for event in named.rstrip(", ").split(",")] if named or not equals else []
    if _LOG in wanted:
        raise SpecInvalid(f"{_LOG} needs what a line has to match, such as {_LOG}=Traceback|ERROR.", field="notify")
    if equals:
        compile_expression(expression, "notify")
    return [*check_events(wanted, "notify", _OF_JOBS), *([f"{_LOG}={expression}"] if equals else [])]


def log_expressions(notify: Sequence[str]) -> dict[str, Any]:
    """Return the expressions, compiled, for which a job's log is looked through."""
    patterns = (pattern for events in parse_notify(notify).values() for pattern in events or ())
    expressions = (pattern.partition("=")[2] for pattern in patterns if pattern.startswith(f"{_LOG}="))
    return {expression: compile_expression(expression, "notify") for expression in expressions}
