from typing import NamedTuple

MAX_NAME = 200  # most characters of a metric's name


class MetricLimits(NamedTuple):
    """Limits of a job's stored metrics, more than a page can show."""

    names: int = 200  # most names; values under further names are dropped
    values: int = 1_000_000  # most values; over half of it, only the lowest and highest of several lines are stored
