"""Metrics that are read from a job's log, each by a regular expression.

The expressions are RE2's: the time of a search is proportional to the text, whatever the expression.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import re2

from core.errors import SpecInvalid
from core.jobs.spec.image_options import quoted

_MOST, _MAX_NAME, _MAX_EXPRESSION = 20, 100, 500
_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


class MetricPattern(NamedTuple):
    """The name of a metric, and the expression whose group is its value."""

    name: str
    expression: Any


def parse_metric_patterns(given: Sequence[str]) -> list[MetricPattern]:
    """Parse patterns such as `loss=loss ([0-9.]+)`. Raises `SpecInvalid`: there are too many, or one is malformed."""
    if len(given) > _MOST:
        raise SpecInvalid(f"{len(given)} metrics; at most {_MOST} are allowed.", field="metricPatterns")
    return [_parse(text) for text in given]


def _parse(text: str) -> MetricPattern:
    name, _, expression = text.partition("=")
    name = name.strip()
    if not name or not name.isprintable() or len(name) > _MAX_NAME or not expression:
        raise _refuse(text, f"Write NAME=EXPRESSION, with a name of at most {_MAX_NAME} characters")
    try:
        compiled = compile_expression(expression, "metricPatterns")
    except SpecInvalid as error:
        raise _refuse(text, error.message.rstrip(".")) from error
    if compiled.groups != 1:
        raise _refuse(
            text,
            f"It needs exactly one group, for the number, but has {compiled.groups}; write other groups as (?:…)",
        )
    return MetricPattern(name, compiled)


def compile_expression(expression: str, field: str) -> Any:  # noqa: ANN401 - re2 has no types
    if not 0 < len(expression) <= _MAX_EXPRESSION or not expression.isprintable():
        raise SpecInvalid(
            f"An expression has 1 to {_MAX_EXPRESSION} printable characters, and this one has {len(expression)}.",
            field=field,
        )
    try:
        return re2.compile(expression, _OPTIONS)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
        raise SpecInvalid(
            f"RE2, which does not support lookaround or backreferences, reports of {quoted(expression)}: {why}",
            field=field,
        ) from error


def _refuse(text: str, what: str) -> SpecInvalid:
    return SpecInvalid(f"{quoted(text)}: {what}. For example 'loss=loss ([0-9.]+)'.", field="metricPatterns")
