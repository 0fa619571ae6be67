"""`jobs top`: the running jobs with their usage, newest metric and cost."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.api.retries import retry_until_connected
from gradient_cli.arguments import connect
from gradient_cli.commands.jobs.metrics import format_value
from gradient_cli.errors import OK, ClientError, UsageError
from gradient_cli.formatting import format_cost, format_duration, parse_time, print_json, print_table
from gradient_cli.options import add_common, add_option

_MOST_JOBS = 50
_POINTS = 3
_SECONDS = 3.0


def add_top(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--project", "-p", metavar="NAME", help="only jobs of this project")
    parser.add_argument("--once", action="store_true", help="print the table once (default if not on a terminal)")
    parser.add_argument(
        "--interval", type=float, default=_SECONDS, metavar="S", help=f"seconds between updates (default: {_SECONDS:g})"
    )
    add_common(parser, top)


def top(args: argparse.Namespace) -> int:
    """Print the running jobs; on a terminal, again and again until Ctrl-C."""
    if not 1 <= args.interval <= 3600:  # noqa: PLR2004  an hour
        raise UsageError(
            f"interval: must be 1 to 3600 seconds, not {args.interval:g}", hint="For example --interval 5."
        )
    api = connect(args)
    if args.json:
        return print_json({"jobs": _sample(api, args.project)})
    if args.once or not terminal.is_tty(sys.stdout):
        _print(_sample(api, args.project))
        return OK
    try:
        rows = _sample(api, args.project)
        while True:
            sys.stdout.write("\x1b[H\x1b[J")
            _print(rows)
            sys.stdout.flush()
            time.sleep(args.interval)
            rows = retry_until_connected(lambda: _sample(api, args.project))
    except KeyboardInterrupt:
        return OK


def _sample(api: Api, project: str | None) -> list[dict[str, Any]]:
    jobs = api.jobs({"state": "Running", "project": project, "limit": _MOST_JOBS})["jobs"]
    return [_describe(job, _series(api, job)) for job in jobs]


def _series(api: Api, job: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of the present attempt: one before it may have come further."""
    try:
        series: list[dict[str, Any]] = api.metrics(job["id"], points=_POINTS, attempt=job["attempt"])["series"]
    except ClientError as error:
        if error.transient:
            raise
        return []  # deleted meanwhile
    return series


def _describe(job: dict[str, Any], series: list[dict[str, Any]]) -> dict[str, Any]:
    last = {item["name"]: item["last"] for item in series if item["source"] == "system"}
    of_gpus = [value for name, value in last.items() if name.startswith("gpu") and name.endswith("_percent")]
    gpus = [value for value in of_gpus if value is not None]
    job_series = [item for item in series if item["source"] == "job" and item["points"]]
    newest = max(job_series, key=lambda item: item["points"][-1]["time"], default=None)
    return {
        **{name: job.get(name) for name in ("id", "name", "machineType", "durationSeconds", "cost", "gpuHours")},
        "cpuPercent": last.get("cpu_percent"),
        "memoryBytes": last.get("memory_bytes"),
        "gpuPercent": sum(gpus) / len(gpus) if gpus else None,
        "metric": {"name": newest["name"], "value": newest["last"], **_progress(newest["points"])} if newest else None,
    }


def _progress(points: list[dict[str, Any]]) -> dict[str, float | None]:
    """Return the last step of a metric, and its steps per second over the whole attempt."""
    first, last = points[0], points[-1]
    if first["step"] is None or last["step"] is None:
        return {"step": last["step"], "stepsPerSecond": None}
    seconds = (parse_time(last["time"]) - parse_time(first["time"])).total_seconds()
    rate = (last["step"] - first["step"]) / seconds if seconds > 0 else None
    return {"step": last["step"], "stepsPerSecond": rate}


def _print(rows: list[dict[str, Any]]) -> None:
    if not rows:
        terminal.print_message("no running jobs; `gradient-cli jobs list` lists all jobs")
        return
    heads = ("ID", "NAME", "MACHINE", "CPU", "MEMORY", "GPU", "METRIC", "STEP", "STEP/S", "RAN", "COST")
    spare = ("MACHINE", "COST", "NAME", "STEP", "STEP/S", "GPU")
    print_table(heads, [_row(row) for row in rows], whole=("CPU", "MEMORY", "GPU", "RAN"), spare=spare)
    if len(rows) == _MOST_JOBS:
        terminal.print_message(f"at most the newest {_MOST_JOBS}; `gradient-cli jobs list -s Running` lists all")


def _row(row: dict[str, Any]) -> list[str]:
    metric = row["metric"] or {}
    step, rate, memory = metric.get("step"), metric.get("stepsPerSecond"), row["memoryBytes"]
    return [
        str(row["id"]),
        str(row["name"] or ""),
        str(row["machineType"] or ""),
        _percent(row["cpuPercent"]),
        "" if memory is None else format_value("memory_bytes", memory),
        _percent(row["gpuPercent"]),
        f"{metric['name']} {format_value(metric['name'], metric['value'])}" if metric else "",
        "" if step is None else f"{step:g}",
        "" if rate is None else f"{rate:.3g}",
        format_duration(row["durationSeconds"]),
        format_cost(row),
    ]


def _percent(value: float | None) -> str:
    return "" if value is None else f"{value:.0f}%"
