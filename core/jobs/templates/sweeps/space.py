"""Values that a sweep tries of each parameter: a range, or a list."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from core.errors import SpecInvalid
from core.jobs.spec.image_options import quoted
from core.jobs.spec.params import Value, find_fault, read_value

MAX_PARAMS = 50
MAX_VALUES = 1000  # most values of one parameter
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_RANGE = re.compile(rf"(log:)?({_NUMBER})\.\.({_NUMBER})(?:/(\d{{1,6}}))?\Z", re.ASCII)
_LIKE_RANGE = re.compile(r"log:|[+-]?\.?\d[^,]*\.\.")
_ITEM = re.compile(r'\s*("[^"]*"\s*|[^,]*)(?:,|\Z)')
_MANY = 10**9
FLAG = "flag"  # true and false, of which a command line has the option or not
_HINT = "Write LOW..HIGH, log:LOW..HIGH, LOW..HIGH/N for N values of it, or values separated by commas"

Given: TypeAlias = Value | Sequence[Value]
"""A parameter in a request: a text such as `log:1e-5..1e-1` or `adam,sgd`, or a list of values."""


@dataclass(frozen=True, slots=True)
class Range:
    low: float
    high: float
    log: bool  # evenly distributed is the logarithm
    whole: bool  # integers only


Space: TypeAlias = dict[str, Range | tuple[Value, ...]]


def parse_space(given: Mapping[str, Given]) -> Space:
    if not 1 <= len(given) <= MAX_PARAMS:
        raise SpecInvalid(
            f"{len(given)} parameters are given; a sweep tries 1 to {MAX_PARAMS}. Name one, such as lr=log:1e-5..1e-1.",
            field="space",
        )
    return {name: _parse(name, value) for name, value in given.items()}


def _parse(name: str, given: Given) -> Range | tuple[Value, ...]:
    if not isinstance(given, str):
        return _check_values(name, [given] if isinstance(given, bool | int | float) else given)
    if given.strip() == FLAG:
        return _check_values(name, [True, False])
    if match := _RANGE.match(given.strip()):
        return _parse_range(name, given, match)
    if _LIKE_RANGE.match(given):
        raise SpecInvalid(f"{name}: {quoted(given)} is not a range. {_HINT}.", field=f"space.{name}")
    items = (item.strip() for item in _ITEM.findall(given))
    return _check_values(
        name, [item[1:-1] if item[0] == '"' == item[-1] else read_value(item) for item in items if item]
    )


def combination_key(values: object) -> str:
    """Return a text that equal combinations share: in Python, true and 1 and 1.0 are equal."""
    return json.dumps(values, sort_keys=True)


def _check_values(name: str, given: Sequence[Value]) -> tuple[Value, ...]:
    values = tuple({combination_key(value): value for value in given}.values())
    if not 1 <= len(values) <= MAX_VALUES:
        raise SpecInvalid(f"{name} has {len(values):,} values; give 1 to {MAX_VALUES:,}.", field=f"space.{name}")
    for value in values:
        if fault := find_fault(name, value):
            raise SpecInvalid(fault, field=f"space.{name}")
    return values


def _parse_range(name: str, text: str, match: re.Match[str]) -> Range | tuple[Value, ...]:
    if fault := find_fault(name, 0):
        raise SpecInvalid(fault, field=f"space.{name}")
    field, log, ends = f"space.{name}", bool(match[1]), (match[2], match[3])
    low, high = map(float, ends)
    if high - low == math.inf:
        raise SpecInvalid(f"{name}: the range {quoted(text)} is too wide. Use bounds below 1e308.", field=field)
    if not low < high:
        raise SpecInvalid(
            f"{name}: the range {quoted(text)} is empty: {ends[0]} is not below {ends[1]}. Write the lower bound "
            "first.",
            field=field,
        )
    if log and low <= 0:
        raise SpecInvalid(
            f"{name}: {ends[0]} has no logarithm. Begin {quoted(text)} above 0, or leave out log:.", field=field
        )
    whole = all(end.lstrip("+-").isdigit() for end in ends)
    if match[4] is None:
        return Range(low, high, log, whole)
    count = int(match[4])
    if not 1 < count <= MAX_VALUES:
        raise SpecInvalid(f"{name}: {quoted(text)} has {count} values; give 2 to {MAX_VALUES:,}.", field=field)
    shares = [index / (count - 1) for index in range(count)]
    points = [low * (high / low) ** share if log else low + (high - low) * share for share in shares]
    points[-1] = high
    return tuple(dict.fromkeys(round(point) if whole else float(f"{point:.12g}") for point in points))


def discrete_values(values: Range | tuple[Value, ...]) -> Sequence[Value] | None:
    """Return all values of a parameter; None: it is a range of real numbers, or of as many integers."""
    if not isinstance(values, Range):
        return values
    few = values.whole and values.high - values.low < _MANY
    return range(int(values.low), int(values.high) + 1) if few else None


def count_combinations(space: Space) -> int | None:
    """Return the number of combinations; None: one of the parameters is a range of real numbers."""
    size = 1
    for values in map(discrete_values, space.values()):
        if values is None:
            return None
        size *= len(values)
    return size


def combination(space: Space, number: int) -> dict[str, Value]:
    """Return one of the combinations by its number, from 0; the last parameter changes first."""
    point: dict[str, Value] = {}
    for name, tried in reversed(space.items()):
        values = discrete_values(tried) or ()
        number, index = divmod(number, len(values))
        point[name] = values[index]
    return dict(reversed(point.items()))
