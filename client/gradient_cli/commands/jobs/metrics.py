from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect, resolve_job_id
from gradient_cli.errors import OK, UsageError
from gradient_cli.formatting import format_memory, format_size, print_json, print_table
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
        metrics = _of_each_attempt(api, job_id, args.name, args.points)
    else:
        metrics = api.metrics(job_id, name=args.name, points=_POINTS if args.points is None else args.points)
    if args.json:
        print_json(metrics)
    elif args.csv:
        _print_csv(metrics["series"])
    elif metrics["series"]:
        series = metrics["series"]
        curves = (sys.stdout.encoding or "").casefold().startswith("utf")
        heads = ("METRIC", "LAST", "MIN", "MAX", "STEP", *(["CURVE"] if curves else []))
        rows = []
        for row_series in series:
            values = [format_value(row_series["name"], row_series[kind]) for kind in ("last", "min", "max")]
            step = row_series["points"][-1]["step"] if row_series["points"] else None
            curve = sparkline([at["value"] for at in row_series["points"]])
            rows.append(
                [row_series["name"], *values, "" if step is None else f"{step:g}", *([curve] if curves else [])]
            )
        print_table(heads, rows, whole=("LAST",), spare=("CURVE", "STEP", "MIN", "MAX"))
    else:
        terminal.print_message(
            f"no metric {args.name!r}" if args.name else "no metrics yet; a job writes them to $GRADIENT_METRICS_FILE"
        )
    if metrics.get("leftOut"):
        terminal.print_message(terminal.sanitize(metrics["leftOut"]))
    return OK


def _of_each_attempt(api: Api, job_id: str, name: str | None, points: int | None) -> dict[str, Any]:
    """Return the values of a job's metrics, all or at most `points` of each series, in a series for each attempt."""
    if points is None:
        return _all_values(api, job_id, name)
    attempts = range(1, max(1, api.job(job_id)["attempt"]) + 1)
    parts = {attempt: api.metrics(job_id, name=name, points=points, attempt=attempt) for attempt in attempts}
    series = [row_series | {"attempt": attempt} for attempt, part in parts.items() for row_series in part["series"]]
    left_out = dict.fromkeys(part["leftOut"] for part in parts.values() if part.get("leftOut"))
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
    return {"series": [_series(*key, values) for key, values in points.items()], "leftOut": page.get("leftOut")}


def _series(attempt: int, source: str, name: str, points: list[dict[str, Any]]) -> dict[str, Any]:
    finite = [at["value"] for at in points if not isinstance(at["value"], str)]
    ends = {"last": points[-1]["value"], "min": min(finite, default=None), "max": max(finite, default=None)}
    return {"name": name, "source": source, "points": points, **ends, "attempt": attempt}


def _print_csv(series: Sequence[dict[str, Any]]) -> None:
    import csv

    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(("name", "source", "attempt", "step", "time", "value"))
    for row_series in series:
        of = row_series["name"], row_series["source"], row_series.get("attempt")
        rows.writerows((*of, at["step"], at["time"], at["value"]) for at in row_series["points"])


def format_value(name: str, value: float | str | None) -> str:
    """Format the value of a metric: bytes as sizes, other numbers with five digits; NaN and infinities are strings."""
    if value is None or isinstance(value, str):
        return value or "-"
    if not name.endswith("_bytes"):
        return f"{value:.5g}"
    return format_memory(value) if "memory" in name else format_size(int(value))


def sparkline(values: Sequence[float | str]) -> str:
    """Draw values as a line of bars from the lowest to the highest; a space where no value was finite."""
    size = max(1, -(-len(values) // _CURVE_CELLS))
    groups = [
        [value for value in values[at : at + size] if not isinstance(value, str)] for at in range(0, len(values), size)
    ]
    means = [sum(group) / len(group) if group else None for group in groups]
    numbers = [mean for mean in means if mean is not None]
    low, span = min(numbers, default=0.0), max(numbers, default=0.0) - min(numbers, default=0.0)
    top = len(_BARS) - 1
    return "".join(" " if mean is None else _BARS[round((mean - low) / span * top) if span else 0] for mean in means)
