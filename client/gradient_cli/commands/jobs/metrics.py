from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect, resolve_job_id
from gradient_cli.errors import OK, UsageError
from gradient_cli.formatting import format_size, print_json, print_table
from gradient_cli.options import add_common, add_job_id

_POINTS = 1000
_CURVE_CELLS = 24
_BARS = "▁▂▃▄▅▆▇█"


def add_metrics(parser: argparse.ArgumentParser) -> None:
    add_job_id(parser)
    parser.add_argument("-n", "--name", metavar="NAME", help="show only this metric")
    parser.add_argument(
        "--csv", action="store_true", help="print all values as CSV: name, source, attempt, step, time, value"
    )
    parser.add_argument(
        "--points",
        type=int,
        metavar="N",
        help=f"maximum values per metric (default: {_POINTS}; with --csv or --json all)",
    )
    add_common(parser, show_metrics)


def show_metrics(args: argparse.Namespace) -> int:
    if args.csv and args.json:
        raise UsageError("csv and json: cannot be combined", hint="Give one of them.")
    api = connect(args)
    job_id = resolve_job_id(args.id, api)
    if args.csv or args.json:
        found = _of_each_attempt(api, job_id, args.name, args.points)
    else:
        found = api.metrics(job_id, name=args.name, points=_POINTS if args.points is None else args.points)
    if args.json:
        print_json(found)
    elif args.csv:
        _print_csv(found["series"])
    elif found["series"]:
        series = found["series"]
        curves = (sys.stdout.encoding or "").casefold().startswith("utf")
        heads = ("METRIC", "LAST", "MIN", "MAX", "STEP", *(["CURVE"] if curves else []))
        rows = []
        for one in series:
            values = [format_value(one["name"], one[kind]) for kind in ("last", "min", "max")]
            step = one["points"][-1]["step"] if one["points"] else None
            curve = sparkline([at["value"] for at in one["points"]])
            rows.append([one["name"], *values, "" if step is None else f"{step:g}", *([curve] if curves else [])])
        print_table(heads, rows, whole=("LAST",), spare=("CURVE", "STEP", "MIN", "MAX"))
    else:
        terminal.print_message(
            f"no metric {args.name!r}" if args.name else "no metrics yet; a job writes them to $GRADIENT_METRICS_FILE"
        )
    if found.get("leftOut"):
        terminal.print_message(terminal.sanitize(found["leftOut"]))
    return OK


def _of_each_attempt(api: Api, job_id: str, name: str | None, points: int | None) -> dict[str, Any]:
    """Return the values of a job's metrics, all or at most `points` of each series, in a series for each attempt."""
    if points is None:
        return _all_values(api, job_id, name)
    attempts = range(1, max(1, api.job(job_id)["attempt"]) + 1)
    found = {attempt: api.metrics(job_id, name=name, points=points, attempt=attempt) for attempt in attempts}
    series = [one | {"attempt": attempt} for attempt, part in found.items() for one in part["series"]]
    left_out = dict.fromkeys(part["leftOut"] for part in found.values() if part.get("leftOut"))
    return {"series": series, "leftOut": " ".join(left_out) or None}


def _all_values(api: Api, job_id: str, name: str | None) -> dict[str, Any]:
    points: dict[tuple[int, str, str], list[dict[str, Any]]] = {}
    page: dict[str, Any] = {"next": None}
    while "rows" not in page or page["next"]:
        page = api.metric_rows(job_id, name=name, after=page["next"])
        for row in page["rows"]:
            for metric, value in row["values"].items():
                point = {"step": row["step"], "time": row["time"], "value": value}
                points.setdefault((row["attempt"], row["source"], metric), []).append(point)
    return {"series": [_series(*key, found) for key, found in points.items()], "leftOut": page.get("leftOut")}


def _series(attempt: int, source: str, name: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    finite = [at["value"] for at in points if not isinstance(at["value"], str)]
    ends = {"last": points[-1]["value"], "min": min(finite, default=None), "max": max(finite, default=None)}
    return {"name": name, "source": source, "points": points, **ends, "attempt": attempt}


def _print_csv(series: Sequence[dict[str, Any]]) -> None:
    import csv

    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(("name", "source", "attempt", "step", "time", "value"))
    for one in series:
        of = one["name"], one["source"], one.get("attempt")
        rows.writerows((*of, at["step"], at["time"], at["value"]) for at in one["points"])


def format_value(name: str, value: float | str | None) -> str:
    """Format the value of a metric: bytes as sizes, other numbers with five digits; NaN and infinities are strings."""
    if value is None or isinstance(value, str):
        return value or "-"
    return format_size(int(value)) if name.endswith("_bytes") else f"{value:.5g}"


def sparkline(values: Sequence[float | str]) -> str:
    """Draw values as a line of bars from the lowest to the highest; a space where no value was finite."""
    size = max(1, -(-len(values) // _CURVE_CELLS))
    groups = [
        [value for value in values[at : at + size] if not isinstance(value, str)] for at in range(0, len(values), size)
    ]
    means = [sum(group) / len(group) if group else None for group in groups]
    known = [mean for mean in means if mean is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    top = len(_BARS) - 1
    return "".join(" " if one is None else _BARS[round((one - low) / span * top) if span else 0] for one in means)
