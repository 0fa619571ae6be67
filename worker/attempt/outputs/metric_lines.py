"""Lines of a job's metrics file: a step, a time, numbers by name, and parameters."""

import hashlib
import json
import math
from datetime import UTC, datetime
from typing import Any, NamedTuple

from core.jobs.tracking.metric_limits import MAX_NAME
from core.jobs.tracking.metrics import MAX_TIME

MAX_METRIC_LINE = 1 << 20
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
"""Strings that are numbers: JSON has no others for these, and the API sends them, too."""
_KINDS = {type(None): "null", bool: "true or false", str: "a string", list: "a list", dict: "an object"}
_DIGEST_LENGTH = 8


class MetricLine(NamedTuple):
    step: float | None
    at: datetime
    values: dict[str, float]
    params: dict[str, Any]
    refused: dict[str, str]  # what its other values are, by name


def parse_metric(line: bytes, written_at: datetime) -> MetricLine | None:
    """Parse a line; None if it is no JSON object.

    `written_at`: the time of a line without one. Lines that are read together share it: the moments at which they are
    parsed say nothing about the program's pace.
    """
    try:
        given = json.loads(line, parse_int=float)  # an integer of any length is a number
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict):
        return None
    params = given.pop("params") if isinstance(given.get("params"), dict) else {}
    numbers = {name: number for name, value in given.items() if (number := _to_number(value)) is not None}
    refused = {name: _KINDS[type(value)] for name, value in given.items() if name not in numbers}
    step, seconds = numbers.pop("step", None), numbers.pop("time", None)
    if step is not None and not math.isfinite(step):
        step, refused["step"] = None, "not finite"
    if seconds is not None and not 0 <= seconds <= MAX_TIME:
        refused["time"] = f"{seconds:g} is not a time in seconds since 1970"
    return MetricLine(step, parse_time(seconds, written_at), numbers, params, refused)


def _to_number(value: object) -> float | None:
    return value if isinstance(value, float) else _NOT_FINITE.get(value) if isinstance(value, str) else None


def storable_name(name: str) -> str:
    """Return a metric's name if it can be stored, else one that begins like it, and like no other's."""
    # A database refuses lone surrogates and, in PostgreSQL, NUL.
    storable = name.encode(errors="replace").decode().replace("\0", "\N{REPLACEMENT CHARACTER}")
    if storable == name and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{storable[: MAX_NAME - 1 - _DIGEST_LENGTH]}~{digest}"


def parse_time(seconds: float | None, default: datetime) -> datetime:
    if seconds is None or not 0 <= seconds <= MAX_TIME:  # also refuses NaN
        return default
    return datetime.fromtimestamp(seconds, UTC)
