"""The table of a comparison: one row for each machine type, with its measurements and ranks."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from statistics import median

from core.comparison.front import find_front
from core.comparison.measurement import Arrival, Goal, Pace
from core.comparison.run_figures import RunFigures

_SECONDS_PER_HOUR = 3600
_STEPS = 1000


@dataclass(frozen=True, slots=True)
class Member:
    """A job of the comparison and what was measured of it.

    Attributes:
        job_id: Its id.
        machine_type: Name of its machine type.
        simulated: True if a stand-in ran it instead of the requested machine.
        state: `succeeded`, `failed` or `unfinished`.
        price_per_hour: US dollars.
        seconds: Running time of all attempts.
        pace: Steps a second; None if its metrics have no steps.
        best: Best value of the comparison's metric.
        arrival: The report that reached the target; None: not reached, or the comparison has none.
        memory_bytes: Peak memory of its processes.
        gpu_memory_bytes: Peak memory of the GPU that used most.
        figures: The figures by which it is judged.
    """

    job_id: str
    machine_type: str
    simulated: bool
    state: str
    price_per_hour: float
    seconds: float
    pace: Pace | None
    best: float | None
    arrival: Arrival | None
    memory_bytes: int | None
    gpu_memory_bytes: int | None
    figures: RunFigures


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure of several jobs: the median, and the least and the largest."""

    median: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of one machine type, over its jobs that succeeded.

    A figure is None if none of them has it. Ranks count from 1; rows whose spreads overlap share one, and rows that are
    not ranked have none.

    Attributes:
        machine_type: Its name.
        simulated: True if stand-ins ran the jobs.
        members: All of its jobs, also those that failed or have not ended.
        steps_per_second: Of one job with the spread within it, of several with the spread between them.
        speedup: Pace over that of the slowest row that is ranked with it.
        best: Best value of the metric.
        seconds: Running time.
        seconds_to_target: Running time until the target was reached, if every job reached it.
        memory_bytes: Largest peak memory of the processes.
        gpu_memory_bytes: Largest peak memory of a GPU.
        price_per_hour: US dollars.
        cost: US dollars of the running time.
        cost_to_target: US dollars until the target was reached.
        cost_per_1000_steps: US dollars.
        fastest: Rank by the time to the target; without a target by the pace.
        cheapest: Rank by the cost of the same.
        most_accurate: Rank by the best value of the metric.
        on_metric_time_front: True if no row that is ranked with it beats it in the metric and the running time; None
            also if no other row has both figures.
        on_metric_cost_front: The same of the metric and the cost of the running time.
        on_time_cost_front: The same of time and cost, both to the target; without a target of the running time.
    """

    machine_type: str
    simulated: bool
    members: tuple[Member, ...]
    steps_per_second: Spread | None
    best: Spread | None
    seconds: Spread | None
    seconds_to_target: Spread | None
    memory_bytes: int | None
    gpu_memory_bytes: int | None
    price_per_hour: float
    cost: float | None
    cost_to_target: float | None
    cost_per_1000_steps: float | None
    speedup: float | None = None
    fastest: int | None = None
    cheapest: int | None = None
    most_accurate: int | None = None
    on_metric_time_front: bool | None = None
    on_metric_cost_front: bool | None = None
    on_time_cost_front: bool | None = None


def build_table(members: Iterable[Member], goal: Goal, target: float | None, *, ranked: bool) -> list[Row]:
    """Build the rows, real machines first, each kind in the order in which it was requested.

    Simulated machines are ranked among themselves, never beside real ones.

    Args:
        members: The jobs, in the order of their submission.
        goal: Direction in which the metric improves.
        target: Value of the metric to be reached, or None.
        ranked: False if the jobs differ in more than the machine: nothing is ranked.
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
        row for kind in kinds for row in _find_fronts(_rank(kind, goal, by_target=by_target), goal, by_target=by_target)
    ]


def _summarize(members: tuple[Member, ...]) -> Row:
    done = [member for member in members if member.state == "succeeded"]
    price = members[0].price_per_hour
    paces = [member.pace for member in done if member.pace is not None]
    one = paces[0] if len(paces) == 1 else None
    pace = Spread(one.median, one.low, one.high) if one else _spread([each.median for each in paces])
    arrivals = [member.arrival.seconds for member in done if member.arrival is not None]
    to_target = _spread(arrivals) if len(arrivals) == len(done) else None
    seconds = _spread([member.seconds for member in done])
    return Row(
        machine_type=members[0].machine_type,
        simulated=members[0].simulated,
        members=members,
        steps_per_second=pace,
        best=_spread([member.best for member in done if member.best is not None]),
        seconds=seconds,
        seconds_to_target=to_target,
        memory_bytes=max((m.memory_bytes for m in done if m.memory_bytes is not None), default=None),
        gpu_memory_bytes=max((m.gpu_memory_bytes for m in done if m.gpu_memory_bytes is not None), default=None),
        price_per_hour=price,
        cost=_cost(price, seconds),
        cost_to_target=_cost(price, to_target),
        cost_per_1000_steps=price * _STEPS / pace.median / _SECONDS_PER_HOUR if pace else None,
    )


def _cost(price_per_hour: float, seconds: Spread | None) -> float | None:
    return price_per_hour * seconds.median / _SECONDS_PER_HOUR if seconds else None


def _spread(values: Sequence[float]) -> Spread | None:
    return Spread(median(values), min(values), max(values)) if values else None


def _rank(rows: Sequence[Row], goal: Goal, *, by_target: bool) -> list[Row]:
    paces = [row.steps_per_second for row in rows]
    slowest = min((pace.median for pace in paces if pace), default=None)
    times = [row.seconds_to_target for row in rows] if by_target else [_invert(pace) for pace in paces]
    fastest = _ranks(times)
    cheapest = _ranks([_scale(time, row.price_per_hour) for row, time in zip(rows, times, strict=True)])
    accurate = _ranks([_scale(row.best, -1 if goal == "max" else 1) for row in rows])
    return [
        replace(
            row,
            speedup=pace.median / slowest if pace and slowest else None,
            fastest=fastest[number],
            cheapest=cheapest[number],
            most_accurate=accurate[number],
        )
        for number, (row, pace) in enumerate(zip(rows, paces, strict=True))
    ]


def _find_fronts(rows: Sequence[Row], goal: Goal, *, by_target: bool) -> list[Row]:
    sign = -1 if goal == "max" else 1
    losses = [None if row.best is None else sign * row.best.median for row in rows]
    seconds = [_median(row.seconds) for row in rows]
    costs = [row.cost for row in rows]
    time_cost = _pairs(seconds, costs)
    if by_target:
        time_cost = _pairs((_median(row.seconds_to_target) for row in rows), (row.cost_to_target for row in rows))
    fronts = zip(*map(find_front, (_pairs(losses, seconds), _pairs(losses, costs), time_cost)), strict=True)
    return [
        replace(row, on_metric_time_front=of_time, on_metric_cost_front=of_cost, on_time_cost_front=of_both)
        for row, (of_time, of_cost, of_both) in zip(rows, fronts, strict=True)
    ]


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def _pairs(first: Iterable[float | None], second: Iterable[float | None]) -> list[tuple[float, float] | None]:
    return [None if x is None or y is None else (x, y) for x, y in zip(first, second, strict=True)]


def _ranks(spreads: Sequence[Spread | None]) -> list[int | None]:
    """Return ranks from 1, smallest first. Only figures whose spreads are apart differ in rank."""
    return [
        None if each is None else 1 + sum(other is not None and other.high < each.low for other in spreads)
        for each in spreads
    ]


def _scale(spread: Spread | None, factor: float) -> Spread | None:
    if spread is None:
        return None
    low, high = sorted((spread.low * factor, spread.high * factor))
    return Spread(spread.median * factor, low, high)


def _invert(spread: Spread | None) -> Spread | None:
    return spread and Spread(1 / spread.median, 1 / spread.high, 1 / spread.low)
