"""Ranks and Pareto fronts of machine types, from figures of repeated jobs.

Two machine types differ in rank if Welch's t-test tells their means apart. Holm's correction for the number of pairs
holds the chance that any machines of equal speed are ranked apart below 5 %.

Where repeats were added after a look at the figures, as in a race, a test at every look would be wrong more often. Then
only some numbers of repeats are tested, each at the same smaller level: Pocock's group sequential test (Biometrika 64,
1977, p. 191).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, pairwise
from math import exp, lgamma, log, log1p, sqrt
from operator import attrgetter
from random import Random
from statistics import fmean, variance

LEVEL = 0.04
"""Level of the tests together. With few repeats of unequal spreads Welch's approximation is a little above its level;
the chance that any machine types of equal figures are ranked apart stays below 5 %."""
ANALYSES = (3, 4, 6, 9, 13, 19, 28, 42)
"""Numbers of repeats that are tested where repeats were added: whoever looks in between sees the test before."""
_LEVEL_OF_ANALYSIS = 0.0065
"""Of each of these tests. By simulation one of them is wrong in 3.6 % of races of equal machines, in 5 % if one machine
spreads three times as much; Pocock's level for eight tests of normal values at 4 % is 0.009."""
_MIN_REPEATS = 2
_WANTED_REPEATS = 3  # fewest with which a large difference is seen: with two, only one of several times the spread
_MOST_REPEATS = 50
_POWER_80 = 0.84  # standard errors by which a difference has to exceed the critical one, to be seen in 80 % of cases
_TERMS = 100
_DRAWS = 2000
_REMEMBERED = 4096  # results, which pages ask for again and again


@dataclass(frozen=True, slots=True)
class Interval:
    """A difference to the best, and the interval that it was judged by: it excludes 0 if and only if ranks differ."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Standing:
    """The place of one machine type by one figure."""

    # 1 and the number of those that are better beyond chance; None: not judged, with fewer than two repeats
    rank: int | None = None
    to_best: Interval | None = None  # difference of its mean to the smallest one; None: it is the best, or not judged
    # repeats of each with which its difference to the best would probably be seen, beside those made; None: it is the
    # best, decided, or as good as equal
    more_repeats: int | None = None


@dataclass(frozen=True, slots=True)
class _Pair:
    first: int
    second: int
    difference: float
    error: float
    freedom: float

    @property
    def chance(self) -> float:
        """The probability of so large a difference between equal machines."""
        return student_chance(abs(self.difference) / self.error, self.freedom) if self.error else 1.0


def rank(samples: Sequence[Sequence[float]], *, added: bool = False) -> list[Standing]:
    """Rank machine types by the figures of their jobs in the order of their repeats, of which less is better.

    `added`: repeats were added after a look at those before.
    """
    means, spreads = _means_and_spreads(samples, ANALYSES[0] if added else _MIN_REPEATS)
    pairs = [_pair(samples, at, other, added=added) for at, other in combinations(means, 2)]
    levels, apart = _decide(pairs, _LEVEL_OF_ANALYSIS if added else LEVEL)
    standings = [Standing(more_repeats=_WANTED_REPEATS - len(values) if values else None) for values in samples]
    for at in means:
        standings[at] = Standing(1 + sum((pair.second if pair.difference > 0 else pair.first) == at for pair in apart))
    best = min(means, key=lambda at: (standings[at].rank, means[at]), default=None)
    for pair in pairs:
        if best in (ends := {pair.first, pair.second}):
            (at,) = ends - {best}
            level, size = levels[pair], abs(pair.difference)
            margin = _critical(level, pair.freedom) * pair.error
            count = min(len(samples[at]), len(samples[best]))
            more = None if pair in apart else _more_repeats(count, spreads[at] + spreads[best], size, margin, level)
            standings[at] = replace(
                standings[at], to_best=Interval(size, size - margin, size + margin), more_repeats=more
            )
    return standings


def chances_of_best(samples: Sequence[Sequence[float]]) -> list[float | None]:
    """Return the probability that each machine type has the smallest mean, to one in a hundred.

    Draws from Student's distributions around the means. None: it has fewer than two repeats.
    """
    return list(_chances(tuple(map(tuple, samples))))


@lru_cache(_REMEMBERED)
def _chances(samples: tuple[tuple[float, ...], ...]) -> tuple[float | None, ...]:
    means, spreads = _means_and_spreads(samples, _MIN_REPEATS)
    drawn = Random(1)  # noqa: S311 - the same figures give the same probability
    wins = dict.fromkeys(means, 0)
    for _ in range(_DRAWS if len(means) > 1 else 0):
        draws = {}
        for at, mean in means.items():
            count = len(samples[at])
            scale = sqrt(spreads[at] / count * (count - 1) / (2 * drawn.gammavariate((count - 1) / 2, 1.0)))
            draws[at] = drawn.gauss(mean, scale)
        wins[min(draws, key=draws.__getitem__)] += 1
    return tuple(wins[at] / _DRAWS if len(means) > 1 and at in wins else None for at in range(len(samples)))


def _means_and_spreads(
    samples: Sequence[Sequence[float]], least_repeats: int
) -> tuple[dict[int, float], dict[int, float]]:
    means = {at: fmean(sample) for at, sample in enumerate(samples) if len(sample) >= least_repeats}
    least = _rounding(samples)
    return means, {at: max(variance(samples[at]), least) for at in means}


def _rounding(samples: Sequence[Sequence[float]]) -> float:
    """Return the variance of rounding: figures in coarse steps may agree by it, without being exact."""
    values = sorted({value for sample in samples for value in sample})
    return min((after - before for before, after in pairwise(values)), default=0.0) ** 2 / 12


def _pair(samples: Sequence[Sequence[float]], first: int, second: int, *, added: bool) -> _Pair:
    values = [samples[first], samples[second]]
    if added:
        tested = max(count for count in ANALYSES if count <= min(map(len, values)))
        values = [sample[:tested] for sample in values]
    least = _rounding(samples)
    parts = [max(variance(sample), least) / len(sample) for sample in values]
    total = sum(parts)
    below = sum(part**2 / (len(sample) - 1) for part, sample in zip(parts, values, strict=True))
    return _Pair(first, second, fmean(values[1]) - fmean(values[0]), sqrt(total), total**2 / below if below else 1.0)


def _decide(pairs: Sequence[_Pair], level: float) -> tuple[dict[_Pair, float], set[_Pair]]:
    """Return the level at which each pair is tested, by Holm, and the pairs that differ."""
    levels: dict[_Pair, float] = {}
    apart: set[_Pair] = set()
    for done, pair in enumerate(sorted(pairs, key=attrgetter("chance"))):
        levels[pair] = level / (len(pairs) - len(apart))
        if done == len(apart) and pair.chance <= levels[pair]:
            apart.add(pair)
    return levels, apart


def _more_repeats(count: int, spread: float, size: float, margin: float, level: float) -> int | None:
    """Return how many more repeats would probably tell a difference; None: no difference that may be there is so large.

    `size`, `margin`: the difference that was seen, and half of its interval. `spread`: both variances together.
    """

    def is_seen(difference: float, wanted: int) -> bool:
        error = sqrt(spread / wanted)
        above = difference / error - _POWER_80 if error else 0.0
        return above > 0 and student_chance(above, 2 * (wanted - 1)) <= level

    wanted = range(count + 1, _MOST_REPEATS + 1)
    enough = bisect_left(wanted, x=True, key=lambda repeats: is_seen(size, repeats))
    if enough < len(wanted):
        return wanted[enough] - count
    return _MOST_REPEATS - count if count < _MOST_REPEATS and is_seen(size + margin, _MOST_REPEATS) else None


def student_chance(size: float, freedom: float) -> float:
    """Return the probability that a Student variable is at least so far from 0, in either direction.

    Not scipy's: it and numpy, which the service has not, are 190 MB and 0.3 s of each start, for this function.
    `test_student_is_that_of_scipy` compares both.
    """
    return _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + size**2))


@lru_cache(_REMEMBERED)
def _critical(level: float, freedom: float) -> float:
    """Return the size that `student_chance` gives this level for."""
    low, high = -7.0, 30.0
    for _ in range(45):
        middle = (low + high) / 2
        low, high = (middle, high) if student_chance(exp(middle), freedom) > level else (low, middle)
    return exp(high)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularized incomplete beta function, by its continued fraction (DLMF 8.17.22)."""
    if not 0 < x < 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(b, a, 1 - x)
    rest = 0.0
    for m in range(_TERMS, 0, -1):
        rest = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)) / (1 + rest)
        rest = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)) / (1 + rest)
    rest = -(a + b) * x / (a + 1) / (1 + rest)
    return exp(a * log(x) + b * log1p(-x) + lgamma(a + b) - lgamma(a) - lgamma(b)) / a / (1 + rest)


def find_front(points: Sequence[tuple[float, float] | None]) -> list[bool | None]:
    """Find the points on the Pareto front.

    A point is on it unless another is at least as good in both figures, of which less is better, and better in one.
    Returns none for a missing point, and for all if there are fewer than two: one alone is compared with nothing.
    """
    present = {point for point in points if point is not None}
    if sum(point is not None for point in points) == 1:
        return [None] * len(points)
    beaten = {b for b in present for a in present if a != b and a[0] <= b[0] and a[1] <= b[1]}
    return [None if point is None else point not in beaten for point in points]
