"""The plan of a sweep: what it tries, how it chooses, when it stops a trial, and when it ends."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Self

from core.errors import SpecInvalid
from core.jobs.spec.image_options import quoted
from core.jobs.templates.sweeps.space import Given, Space, count_combinations, discrete_values, parse_space
from core.jobs.tracking.metric_limits import MAX_NAME

MAX_TRIALS = 1000
MAX_SEED = 2**32 - 1
_DIRECTIONS = ("min", "max")
_NO_METRICS = ("step", "time", "params")  # of a line of the metrics file
Method = Literal["tpe", "random", "grid"]
Stop = Literal["asha", "median"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    space: dict[str, Given]  # as it was given
    method: Method
    metric: str | None
    goal: Literal["min", "max"]
    stop: Stop | None
    stop_after: int  # values of the metric after which a trial may first be stopped
    seed: int
    trials: int  # most trials
    parallel: int  # most trials that run as jobs at once; 0: programs of one's own ask for all of them

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        return cls(**stored)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def parsed_space(self) -> Space:
        return parse_space(self.space)

    def better(self, first: float | None, second: float | None) -> float | None:
        """Return the better of two values of the metric, of which either may be missing."""
        numbers = [value for value in (first, second) if value is not None]
        return (min if self.goal == "min" else max)(numbers, default=None)


def make_plan(  # noqa: PLR0913 - the fields of a request
    *,
    space: Mapping[str, Given],
    method: Method,
    metric: str | None,
    stop: Stop | None,
    stop_after: int,
    seed: int,
    trials: int | None,
    parallel: int,
    has_ceiling: bool,
) -> Plan:
    """Check the plan of a new sweep."""
    parsed = parse_space(space)
    name, goal = _parse_metric(metric)
    if name is None and (method == "tpe" or stop is not None):
        what = f"{stop} stops trials" if stop is not None else "Method tpe chooses parameters"
        raise SpecInvalid(
            f"{what} by a metric. Give metric, such as val_loss:min, or use method random or grid without stop.",
            field="metric",
        )
    if trials is None and method != "grid" and not has_ceiling:
        raise SpecInvalid(
            "Nothing ends this sweep. Give the number of trials, or a ceiling with maxCost or maxGpuHours.",
            field="trials",
        )
    return Plan(
        space=dict(space),
        method=method,
        metric=name,
        goal=goal,
        stop=stop,
        stop_after=stop_after,
        seed=seed,
        trials=_most_trials(parsed, method, trials),
        parallel=parallel,
    )


def _parse_metric(text: str | None) -> tuple[str | None, Literal["min", "max"]]:
    if text is None:
        return None, "min"
    name, _, goal = text.rpartition(":")
    if not name or goal not in _DIRECTIONS:
        raise SpecInvalid(
            f"{quoted(text)} does not say whether low or high is good. Write NAME:min or NAME:max, such as "
            f"{(name or text)[:80]}:min.",
            field="metric",
        )
    if name in _NO_METRICS or name != name.strip() or not name.isprintable() or len(name) > MAX_NAME:
        raise SpecInvalid(
            f"No program can log a metric named {quoted(name)}. A name has at most {MAX_NAME} printable "
            f"characters, has no space at either end, and is not {', '.join(_NO_METRICS[:-1])} or {_NO_METRICS[-1]}.",
            field="metric",
        )
    return name, "min" if goal == "min" else "max"


def _most_trials(space: Space, method: Method, trials: int | None) -> int:
    size = count_combinations(space)
    if method == "grid" and size is None:
        name = next(name for name, values in space.items() if discrete_values(values) is None)
        raise SpecInvalid(
            f"{name} is a range, but a grid needs single values. Give their number, {name}=LOW..HIGH/5, or list them.",
            field=f"space.{name}",
        )
    if method == "grid" and size is not None and size > MAX_TRIALS:
        raise SpecInvalid(
            f"The grid has {size:,} combinations; a sweep has at most {MAX_TRIALS:,} trials. Give fewer values, or "
            "method random or tpe.",
            field="space",
        )
    if size is not None and trials is not None and trials > size:
        raise SpecInvalid(
            f"{trials:,} trials are more than the grid's {size:,} combinations. Request at most {size:,}, or give "
            "more values.",
            field="trials",
        )
    return trials or min(size or MAX_TRIALS, MAX_TRIALS)
