"""The table of a comparison: one row for each machine type, with its measurements and ranks."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from math import exp, log
from statistics import fmean, median
from typing import Literal

from core.comparison.measurement import Arrival, Goal, RunFigures, Spread
from core.comparison.ranking import Interval, Standing, chances_of_best, find_front, rank

_SECONDS_PER_HOUR = 3600
_STEPS = 1000
_SHORTEST = 1e-3
_LARGEST = 700
_NOT_JUDGED = Standing()
RANKED = {"fastest": "fastest", "cheapest": "cheapest", "most_accurate": "most accurate"}
"""Figures by which rows are ranked, in words."""


@dataclass(frozen=True, slots=True)
class Member:
    job_id: str
    machine_type: str
    simulated: bool  # True if a stand-in ran it instead of the requested machine
    state: str  # `succeeded`, `failed`, `cancelled` or `unfinished`
    price_per_hour: float  # US dollars
    gpus: int
    seconds: float
    pace: Spread | None  # steps a second; None if its metrics have no steps
    final: float | None
    arrival: Arrival | None  # the report that reached the target; None: not reached, or the comparison has none
    memory_bytes: int | None
    gpu_memory_bytes: int | None
    figures: RunFigures
    beside: bool = False  # it ran at the same time as another job of the comparison on the same host
    other_cpus: float | None = None  # CPUs of its host that something else kept busy, on average; None: not measured


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one machine type, over its jobs that succeeded; None: none of them has it."""

    machine_type: str
    simulated: bool  # True if stand-ins ran the jobs
    members: tuple[Member, ...]  # all of its jobs, also those that failed or have not ended
    steps_per_second: Spread | None  # of one job with the spread within it, of several with the spread between them
    final: Spread | None
    seconds: Spread | None
    seconds_to_target: Spread | None  # running time until the target was reached, if every job reached it
    memory_bytes: int | None
    gpu_memory_bytes: int | None
    price_per_hour: float  # US dollars
    cost: float | None  # US dollars of the running time
    cost_to_target: float | None  # US dollars until the target was reached
    cost_per_1000_steps: float | None  # US dollars
    gpu_hours: float | None  # of the running time
    gpu_hours_to_target: float | None
    gpu_hours_per_1000_steps: float | None
    speedup: float | None = None
    # Its standing by the time to the target; without a target by the pace. Differences are factors, less 1.
    fastest: Standing = _NOT_JUDGED
    cheapest: Standing = _NOT_JUDGED
    most_accurate: Standing = _NOT_JUDGED
    labels: tuple[str, ...] = ()
    # True if no row that is ranked with it beats it in the metric and the running time; None also if no other row has
    # both figures
    on_metric_time_front: bool | None = None
    on_metric_cost_front: bool | None = None
    # the same of time and cost, both to the target; without a target of the running time
    on_time_cost_front: bool | None = None

    @property
    def done(self) -> list[Member]:
        """Its jobs that succeeded, of which all figures are."""
        return [member for member in self.members if member.state == "succeeded"]


@dataclass(frozen=True, slots=True)
class Decision:
    """The machine type to take, and what would change that."""

    best: Row
    rival: Row  # the next best
    by: Literal["cost", "time"]
    probability: float | None  # that `best` is the best; None: fewer than two repeats
    # price of an hour of `best` at which the rival costs as much; None: not judged by cost
    break_even_price: float | None
    contenders: tuple[Row, ...]  # those that may be the best: not ranked behind another
    more_repeats: int | None  # repeats of each contender that probably would decide; None: decided, or as good as equal


def build_table(
    members: Iterable[Member], goal: Goal, target: float | None, *, ranked: bool, added: bool = False
) -> list[Row]:
    """Build the rows, real machines first, each kind in the order in which it was requested.

    Simulated machines are ranked among themselves, never beside real ones; none are (`ranked`) if the jobs differ in
    more than the machine. `target`: value of the metric to be reached. `added`: repeats were added to those first made.
    """
    order: dict[tuple[bool, str], list[Member]] = {}
    for member in members:
        order.setdefault((member.simulated, member.machine_type), []).append(member)
    rows = [_summarize(tuple(group)) for _, group in sorted(order.items(), key=lambda entry: entry[0][0])]
    if not ranked:
        return rows
    kinds = [list(kind) for _, kind in groupby(rows, key=lambda row: row.simulated)]
    by_target = target is not None
    return [
        row
        for kind in kinds
        for row in _find_fronts(_rank(kind, goal, by_target=by_target, added=added), goal, by_target=by_target)
    ]


def _summarize(members: tuple[Member, ...]) -> Row:
    first, done = members[0], [member for member in members if member.state == "succeeded"]
    paces = [member.pace for member in done if member.pace is not None]
    pace = paces[0] if len(paces) == 1 else _spread([pace.median for pace in paces])
    arrivals = [member.arrival.seconds for member in done if member.arrival is not None]
    to_target = _spread(arrivals) if len(arrivals) == len(done) else None
    seconds = _spread([member.seconds for member in done])
    for_1000_steps = Spread(*[_STEPS / pace.median] * 3) if pace else None
    return Row(
        machine_type=first.machine_type,
        simulated=first.simulated,
        members=members,
        steps_per_second=pace,
        final=_spread([member.final for member in done if member.final is not None]),
        seconds=seconds,
        seconds_to_target=to_target,
        memory_bytes=max((m.memory_bytes for m in done if m.memory_bytes is not None), default=None),
        gpu_memory_bytes=max((m.gpu_memory_bytes for m in done if m.gpu_memory_bytes is not None), default=None),
        price_per_hour=first.price_per_hour,
        cost=_amount(first.price_per_hour, seconds),
        cost_to_target=_amount(first.price_per_hour, to_target),
        cost_per_1000_steps=_amount(first.price_per_hour, for_1000_steps),
        gpu_hours=_amount(first.gpus, seconds),
        gpu_hours_to_target=_amount(first.gpus, to_target),
        gpu_hours_per_1000_steps=_amount(first.gpus, for_1000_steps),
    )


def _amount(per_hour: float, seconds: Spread | None) -> float | None:
    return per_hour * seconds.median / _SECONDS_PER_HOUR if seconds else None


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(median(values), min(values), max(values)) if values else None


def _rank(rows: Sequence[Row], goal: Goal, *, by_target: bool, added: bool) -> list[Row]:
    paces = [row.steps_per_second for row in rows]
    slowest = min((pace.median for pace in paces if pace), default=None)
    times = [_times(row, by_target=by_target) for row in rows]
    costs = _costs(rows, times)
    sign = -1 if goal == "max" else 1
    finals = [[sign * run.final for run in row.done if run.final is not None] for row in rows]
    by_time, by_cost = ([_as_factor(standing) for standing in rank(samples, added=added)] for samples in (times, costs))
    by_metric = rank(finals, added=added)
    made = [
        replace(
            row,
            speedup=pace.median / slowest if pace and slowest else None,
            fastest=fastest,
            cheapest=cheapest,
            most_accurate=accurate,
        )
        for row, pace, fastest, cheapest, accurate in zip(rows, paces, by_time, by_cost, by_metric, strict=True)
    ]
    return [replace(row, labels=tuple(_labels(row, made))) for row in made]


def _times(row: Row, *, by_target: bool) -> list[float]:
    """Return the logarithms of the times by which its jobs are ranked."""
    if not by_target:
        return [-log(run.pace.median) for run in row.done if run.pace is not None]
    if row.seconds_to_target is None:
        return []
    return [log(max(run.arrival.seconds, _SHORTEST)) for run in row.done if run.arrival is not None]


def _costs(rows: Sequence[Row], times: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the logarithms of the costs; what costs nothing has no ratio to anything: it is shown, and not ranked."""
    return [
        [log(row.price_per_hour) + time for time in logs] if row.price_per_hour else []
        for row, logs in zip(rows, times, strict=True)
    ]


def decide(table: Sequence[Row], *, by_target: bool, added: bool = False) -> Decision | None:
    """Decide for the machine type of the least cost, of real ones if there are two; None: fewer than two have figures.

    If one of them costs nothing, time decides.
    """
    for simulated in (False, True):
        rows = [row for row in table if row.simulated is simulated]
        judged = [(row, times) for row in rows if (times := _times(row, by_target=by_target))]
        if len(judged) > 1:
            return _decide([row for row, _ in judged], [times for _, times in judged], added=added)
    return None


def _decide(rows: Sequence[Row], times: Sequence[Sequence[float]], *, added: bool) -> Decision:
    by: Literal["cost", "time"] = "cost" if all(row.price_per_hour for row in rows) else "time"
    samples = _costs(rows, times) if by == "cost" else times
    means = [fmean(sample) for sample in samples]
    best, rival = sorted(range(len(rows)), key=means.__getitem__)[:2]
    standings = rank(samples, added=added)
    contenders = [at for at, standing in enumerate(standings) if standing.rank in {None, 1}]
    more = max((standings[at].more_repeats or 0 for at in contenders), default=0)
    break_even = rows[best].price_per_hour * exp(min(means[rival] - means[best], _LARGEST)) if by == "cost" else None
    return Decision(
        best=rows[best],
        rival=rows[rival],
        by=by,
        probability=chances_of_best(samples)[best],
        break_even_price=break_even,
        contenders=tuple(rows[at] for at in contenders),
        more_repeats=more if len(contenders) > 1 and more else None,
    )


def _as_factor(standing: Standing) -> Standing:
    """Return a difference of logarithms as a factor, less 1."""
    if standing.to_best is None:
        return standing
    value, low, high = (exp(min(number, _LARGEST)) - 1 for number in astuple(standing.to_best))
    return replace(standing, to_best=Interval(value, low, high))


def _labels(row: Row, rows: Sequence[Row]) -> Iterator[str]:
    """Say in which figures it is first; nothing if nobody is known to be worse."""
    for field, label in RANKED.items():
        standings = [getattr(row, field) for row in rows]
        judged = [standing.rank for standing in standings]
        undecided = any(standing.rank is None and standing.more_repeats for standing in standings)
        if getattr(row, field).rank == 1 and any(rank and rank > 1 for rank in judged):
            yield f"tied {label}" if undecided or judged.count(1) > 1 else label


def _find_fronts(rows: Sequence[Row], goal: Goal, *, by_target: bool) -> list[Row]:
    sign = -1 if goal == "max" else 1
    losses = [sign * row.final.median if row.final else None for row in rows]
    seconds = [row.seconds.median if row.seconds else None for row in rows]
    costs = [row.cost for row in rows]
    time_cost = _pairs(seconds, costs)
    if by_target:
        times = [row.seconds_to_target.median if row.seconds_to_target else None for row in rows]
        time_cost = _pairs(times, (row.cost_to_target for row in rows))
    fronts = zip(*map(find_front, (_pairs(losses, seconds), _pairs(losses, costs), time_cost)), strict=True)
    return [
        replace(row, on_metric_time_front=of_time, on_metric_cost_front=of_cost, on_time_cost_front=of_both)
        for row, (of_time, of_cost, of_both) in zip(rows, fronts, strict=True)
    ]


def _pairs(first: Iterable[float | None], second: Iterable[float | None]) -> list[tuple[float, float] | None]:
    return [None if x is None or y is None else (x, y) for x, y in zip(first, second, strict=True)]
