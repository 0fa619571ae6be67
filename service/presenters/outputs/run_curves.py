"""The curves of a run, for the page that compares it with others: two columns of numbers a metric."""

import json
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal, NamedTuple

from core.db.models.jobs import Job
from core.db.models.metrics import to_json
from core.jobs.tracking.metrics import MAX_SERIES, OwnRows
from service.presenters.outputs.downsample import finite_or_nan, thin

Axis = Literal["step", "time", "relative"]
_MS = 3  # decimal places of seconds


class CurvesQuery(NamedTuple):
    axis: Axis  # `relative`: seconds since the run began; of a metric without steps, `step` numbers its values
    points: int  # most points of a curve
    most_values: int  # most values that are read of a run
    within: tuple[float, float] | None = None  # only points in this range of the axis


def curves_line(job: Job, rows: OwnRows, query: CurvesQuery) -> bytes:
    """Return the curves as a line of JSON."""
    places = _places(job, rows, query.axis)
    names = dict.fromkeys(name for values in rows.values for name in values)
    curves = [_curve(name, places, rows, query) for name in list(names)[:MAX_SERIES]]
    line = {"id": job.id, "sampled": rows.sampled, "series": curves}
    return json.dumps(line, separators=(",", ":")).encode() + b"\n"


def _places(job: Job, rows: OwnRows, axis: Axis) -> Sequence[float | None]:
    if axis == "step":
        return rows.steps
    began = job.started_at.timestamp() if axis == "relative" and job.started_at else 0.0
    return [round(at.timestamp() - began, _MS) for at in rows.times]


def _curve(name: str, places: Sequence[float | None], rows: OwnRows, query: CurvesQuery) -> dict[str, object]:
    written = [(step, values[name]) for step, values in zip(places, rows.values, strict=True) if name in values]
    xs = [at if step is None else step for at, (step, _) in enumerate(written)]
    # In order; of two values at one step, as of two attempts, the later one.
    by_x = dict(zip(xs, (finite_or_nan(value) for _, value in written), strict=True))
    if len(by_x) < len(xs) or any(x > other for x, other in pairwise(xs)):
        by_x = dict(sorted(by_x.items()))
    finite = [value for value in by_x.values() if not math.isnan(value)]
    if query.within is not None:
        by_x = {x: value for x, value in by_x.items() if query.within[0] <= x <= query.within[1]}
    xs, ys = list(by_x), list(by_x.values())
    shown = thin(ys, query.points)
    return {
        "name": name,
        "last": to_json(written[-1][1]),
        "min": min(finite, default=None),
        "max": max(finite, default=None),
        "x": [int(x) if (x := xs[at]) % 1 == 0 else x for at in shown],
        "y": [None if math.isnan(ys[at]) else float(f"{ys[at]:.5g}") for at in shown],
    }
