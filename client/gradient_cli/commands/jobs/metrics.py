"""`jobs metrics`: a job's metrics as a table with curves, as JSON or as CSV."""

from __future__ import annotations

import sys

from gradient_cli import terminal
from gradient_cli.errors import OK, UsageError
from gradient_cli.formatting import format_size, print_json, print_table
from gradient_cli.options import add_connection, add_job_id, add_json, resolve_job_id

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

_POINTS = 1000
_CURVE_CELLS = 24
_BARS = "▁▂▃▄▅▆▇█"


def add_metrics(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `jobs metrics`."""
    add_job_id(parser)
    parser.add_argument("-n", "--name", metavar="NAME", help="show only this metric")
    parser.add_argument("--csv", action="store_true", help="print all values as CSV: name, source, step, time, value")
    parser.add_argument(
        "--points", type=int, default=_POINTS, metavar="N", help=f"most values of each metric (default: {_POINTS})"
    )
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=show_metrics)


def show_metrics(args: argparse.Namespace) -> int:
    """Print a job's metrics."""
    from gradient_cli.api.client import connect

    if args.csv and args.json:
        raise UsageError("csv and json: cannot be combined", hint="Give one of them.")
    api = connect(args)
    found = api.metrics(resolve_job_id(args.id, api), name=args.name, points=args.points)
    if args.json:
        print_json(found)
    elif args.csv:
        _print_csv(found["series"])
    elif found["series"]:
        _print_table(found["series"])
    else:
        terminal.print_message(
            f"no metric {args.name!r}" if args.name else "no metrics yet; a job writes them to $GRADIENT_METRICS_FILE"
        )
    if found.get("leftOut"):
        terminal.print_message(terminal.sanitize(found["leftOut"]))
    return OK


def _print_csv(series: Sequence[dict[str, Any]]) -> None:
    import csv

    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(("name", "source", "step", "time", "value"))
    for one in series:
        rows.writerows((one["name"], one["source"], at["step"], at["time"], at["value"]) for at in one["points"])


def _print_table(series: Sequence[dict[str, Any]]) -> None:
    curves = (sys.stdout.encoding or "").casefold().startswith("utf")
    heads = ("METRIC", "LAST", "MIN", "MAX", "STEP", *(["CURVE"] if curves else []))
    rows = []
    for one in series:
        values = [format_value(one["name"], one[kind]) for kind in ("last", "min", "max")]
        step = one["points"][-1]["step"] if one["points"] else None
        curve = sparkline([at["value"] for at in one["points"]])
        rows.append([one["name"], *values, "" if step is None else f"{step:g}", *([curve] if curves else [])])
    print_table(heads, rows, whole=("LAST",), spare=("CURVE", "STEP", "MIN", "MAX"))


def format_value(name: str, value: float | None) -> str:
    """Format the value of a metric: bytes as sizes, other numbers with five digits."""
    if value is None:
        return "-"
    return format_size(int(value)) if name.endswith("_bytes") else f"{value:.5g}"


def sparkline(values: Sequence[float | None]) -> str:
    """Draw values as a line of bars from the lowest to the highest; a space where no value was finite."""
    size = max(1, -(-len(values) // _CURVE_CELLS))
    groups = [[value for value in values[at : at + size] if value is not None] for at in range(0, len(values), size)]
    means = [sum(group) / len(group) if group else None for group in groups]
    known = [mean for mean in means if mean is not None]
    low, span = min(known, default=0.0), max(known, default=0.0) - min(known, default=0.0)
    top = len(_BARS) - 1
    return "".join(" " if one is None else _BARS[round((one - low) / span * top) if span else 0] for one in means)
