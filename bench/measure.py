"""Elements of every measurement: series of samples, figures computed from them, and goals to compare them with."""

import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class MissingRequirement(Exception):
    """This machine lacks something that a measurement needs."""


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a measurement.

    Attributes:
        rounds: Number of turns of subject and floor.
        quick: Take a few samples only: to see that a measurement works, not for its figures.
        database: Of measurements of many clients: a PostgreSQL server to create databases on; None: SQLite.
        processes: Likewise, the processes of the API.
        before: Likewise, a checkout of another revision to measure in turn.
    """

    rounds: int
    quick: bool
    database: str | None = None
    processes: int = 1
    before: Path | None = None

    def pick(self, full: int, quick: int) -> int:
        """Choose the number of samples per round, megabytes, or whatever a measurement counts."""
        return quick if self.quick else full


@dataclass(slots=True)
class Series:
    """Samples of one quantity, by round.

    Attributes:
        what: The quantity.
        unit: The unit of every sample.
        rounds: The samples of each round.
    """

    what: str
    unit: str
    rounds: list[list[float]] = field(default_factory=list)

    def begin_round(self) -> None:
        """Start a new round for the samples that follow."""
        self.rounds.append([])

    def add(self, value: float) -> None:
        """Add one sample to the current round."""
        self.rounds[-1].append(value)

    @property
    def samples(self) -> list[float]:
        """All samples."""
        return [value for round_values in self.rounds for value in round_values]

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """The smallest sample that at least 99 % of the samples do not exceed (nearest rank)."""
        ordered = sorted(self.samples)
        return ordered[-(-99 * len(ordered) // 100) - 1]

    def figures(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "what": self.what,
            "unit": self.unit,
            "p50": round(self.p50, 4),
            "p99": round(self.p99, 4),
            "min": round(min(self.samples), 4),
            "max": round(max(self.samples), 4),
            "n": len(self.samples),
            "rounds": [round(statistics.median(round_values), 4) for round_values in self.rounds],
        }


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one value, usually a ratio to a floor.

    Attributes:
        what: The bounded quantity.
        value: The measured value.
        limit: The bound.
        at_most: Whether the bound is an upper one; else it is a lower one.
        spread: Lowest and highest value of single rounds, if rounds have one.
    """

    what: str
    value: float
    limit: float
    at_most: bool = True
    spread: tuple[float, float] | None = None

    @property
    def met(self) -> bool:
        """True if the bound holds."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    @property
    def ratio(self) -> float:
        """The value in terms of the bound: at most 1 if it is met."""
        part, whole = (self.value, self.limit) if self.at_most else (self.limit, self.value)
        return part / whole if whole else math.inf

    def figures(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "what": self.what,
            "value": round(self.value, 4),
            "limit": self.limit,
            "bound": "at most" if self.at_most else "at least",
            "spread": [round(share, 4) for share in self.spread] if self.spread else None,
            "met": self.met,
        }


def ratio_goal(what: str, subject: Series, floor: Series, limit: float, *, at_most: bool = True) -> Goal:
    """Bound the ratio of the subject's median to the floor's; the spread is that of the rounds' own ratios."""
    pairs = zip(subject.rounds, floor.rounds, strict=True)
    ratios = [statistics.median(ours) / statistics.median(theirs) for ours, theirs in pairs]
    return Goal(what, subject.p50 / floor.p50, limit, at_most=at_most, spread=(min(ratios), max(ratios)))


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one measurement: its series, including the floors, and its goals.

    Attributes:
        series: The series.
        goals: The goals.
        table: Figures that belong together, by line; every line has the same columns.
    """

    series: list[Series]
    goals: list[Goal]
    table: list[dict[str, Any]] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return the figures for JSON."""
        return {
            "series": [measured.figures() for measured in self.series],
            "goals": [goal.figures() for goal in self.goals],
            "table": self.table,
        }
