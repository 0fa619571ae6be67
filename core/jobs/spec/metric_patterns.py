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
    if len(expression) > _MAX_EXPRESSION:
        raise _refuse(text, f"Its expression has {len(expression)} characters; at most {_MAX_EXPRESSION} are allowed")
    try:
        compiled = re2.compile(expression, _OPTIONS)
    except re2.error as error:
        why = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else error
        raise _refuse(text, f"RE2, which does not support lookaround or backreferences, reports: {why}") from error
    if compiled.groups != 1:
        raise _refuse(
            text,
            f"It needs exactly one group, for the number, but has {compiled.groups}; write other groups as (?:…)",
        )
    return MetricPattern(name, compiled)


def _refuse(text: str, what: str) -> SpecInvalid:
    return SpecInvalid(f"{quoted(text)}: {what}. For example 'loss=loss ([0-9.]+)'.", field="metricPatterns")
