"""What every measurement is made of: series of samples, figures drawn from them, and goals they are held against."""

import statistics
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Size:
    """How much to measure.

    Attributes:
        rounds: How often subject and floor take turns.
        quick: A few samples only: to see that a measurement works, not what it says.
    """

    rounds: int
    quick: bool

    def pick(self, full: int, quick: int) -> int:
        """The number of samples a round, megabytes, or whatever a measurement counts."""
        return quick if self.quick else full


@dataclass(slots=True)
class Series:
    """Samples of one thing, round by round.

    Attributes:
        what: What was measured.
        unit: Of every sample.
        rounds: The samples of each round.
    """

    what: str
    unit: str
    rounds: list[list[float]] = field(default_factory=list)

    def begin_round(self) -> None:
        """Samples from now on belong to a new round."""
        self.rounds.append([])

    def add(self, value: float) -> None:
        """Add one sample to the round that was begun last."""
        self.rounds[-1].append(value)

    @property
    def samples(self) -> list[float]:
        """All samples."""
        return [value for one in self.rounds for value in one]

    @property
    def p50(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    @property
    def p99(self) -> float:
        """The smallest sample that 99 % do not pass (nearest rank)."""
        ordered = sorted(self.samples)
        return ordered[-(-99 * len(ordered) // 100) - 1]

    def figures(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "what": self.what,
            "unit": self.unit,
            "p50": round(self.p50, 4),
            "p99": round(self.p99, 4),
            "min": round(min(self.samples), 4),
            "max": round(max(self.samples), 4),
            "n": len(self.samples),
            "rounds": [round(statistics.median(one), 4) for one in self.rounds],
        }


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on one value, most often a ratio to a floor.

    Attributes:
        what: What is bounded.
        value: What was measured.
        limit: The bound.
        at_most: Whether the value may not pass the bound; else it may not stay below it.
        spread: Lowest and highest value of single rounds, where rounds say anything.
    """

    what: str
    value: float
    limit: float
    at_most: bool = True
    spread: tuple[float, float] | None = None

    @property
    def met(self) -> bool:
        """Whether the bound holds."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def figures(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "what": self.what,
            "value": round(self.value, 4),
            "limit": self.limit,
            "bound": "at most" if self.at_most else "at least",
            "spread": [round(one, 4) for one in self.spread] if self.spread else None,
            "met": self.met,
        }


def ratio_goal(what: str, subject: Series, floor: Series, limit: float, *, at_most: bool = True) -> Goal:
    """Bound the subject's median by the floor's; the spread is that of the rounds' own ratios."""
    pairs = zip(subject.rounds, floor.rounds, strict=True)
    ratios = [statistics.median(ours) / statistics.median(theirs) for ours, theirs in pairs]
    return Goal(what, subject.p50 / floor.p50, limit, at_most=at_most, spread=(min(ratios), max(ratios)))


@dataclass(frozen=True, slots=True)
class Result:
    """What one measurement brought: its series, the floors among them, and the goals."""

    series: list[Series]
    goals: list[Goal]

    def figures(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "series": [one.figures() for one in self.series],
            "goals": [one.figures() for one in self.goals],
        }
