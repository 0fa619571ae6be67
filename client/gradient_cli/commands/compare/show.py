from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.api.retries import retry_until_connected
from gradient_cli.arguments import connect, last_id
from gradient_cli.config import write_json
from gradient_cli.errors import OK, ClientError, UsageError
from gradient_cli.follow import SUCCEEDED, exit_code
from gradient_cli.formatting import (
    format_cost,
    format_duration,
    format_memory,
    format_past,
    print_fields,
    print_json,
    print_list,
    print_table,
)
from gradient_cli.options import LAST, add_common, add_option, add_positional

_WAIT_SECONDS = 2.0
_ID_CHARACTERS, _MOST, _NAMED = 14, 100, 5
_FRONT = "PARETO FRONT OF"
_FIRST = 5  # columns that are never cut: rank, cost, time and metric
_WIDE = 100  # columns of a terminal for a table; a narrower one gets a block for each machine type
_FILE_BYTES = 1024**2
_EXPLAINED = "certainty of the ranks, Pareto fronts, bottleneck of each machine, and what would change the verdict"


def add_list(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--limit", metavar="N", type=int, default=20, help="number of comparisons to list (default: 20)")
    add_common(parser, list_comparisons)


def add_show(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    parser.add_argument(
        "--wait",
        action="store_true",
        help="first wait until all jobs have ended, then exit with the highest of their exit codes",
    )
    parser.add_argument("--explain", action="store_true", help=f"also print {_EXPLAINED}")
    add_common(parser, show)


def add_export(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    add_option(parser, "--format", choices=("csv", "json", "md", "markdown"), help="format of the table (default: md)")
    add_option(parser, "--to", metavar="FILE", help="write a file for `compare import` on another installation")
    add_common(parser, export, json="")


def add_import(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "file", metavar="FILE", help="a file that `compare export --to` wrote")
    add_common(parser, import_file)


def add_delete(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    add_common(parser, delete, json="")


def add_rename(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    add_positional(parser, "name", metavar="NAME", needed=True, help="its new name; '' removes the name")
    add_common(parser, rename, json="")


def add_id(parser: argparse.ArgumentParser) -> None:
    add_positional(
        parser,
        "id",
        nargs="?",
        metavar="COMPARISON",
        help=f"id of the comparison, or its beginning (default: {LAST}, the last one created in this folder)",
    )


def resolve_id(given: str | None, api: Api) -> str:
    """Return the whole id of the given comparison, else that of the last one made in this folder."""
    if not given or given == LAST:
        return last_id("comparisons", api, "compare")
    if len(given) >= _ID_CHARACTERS:
        return given
    ids: list[str] = []
    after: str | None = ""
    while after is not None:
        page = api.comparisons({"limit": _MOST, "after": after or None})
        ids += [comparison["id"] for comparison in page["comparisons"] if comparison["id"].startswith(given)]
        after = page.get("next")
    if len(ids) > 1:
        raise UsageError(
            f"several comparisons have an id that begins with {given!r}: {', '.join(ids[:_NAMED])}",
            hint="Give more characters.",
        )
    return ids[0] if ids else given


def list_comparisons(args: argparse.Namespace) -> int:
    answer = connect(args).comparisons({"limit": args.limit})
    rows = [
        [
            comparison["id"],
            comparison["name"] or "",
            f"{comparison['ended']} of {comparison['jobs']} ended",
            format_past(comparison["createdAt"]),
        ]
        for comparison in answer["comparisons"]
    ]
    empty = "no comparisons; see `gradient-cli compare create --help` to create one"
    return print_list(args, answer, ("ID", "NAME", "JOBS", "CREATED"), rows, empty)


def show(args: argparse.Namespace) -> int:
    api = connect(args)
    comparison_id = resolve_id(args.id, api)
    comparison = wait(api, comparison_id) if args.wait else api.comparison(comparison_id)
    code = _exit_code(api, comparison) if args.wait else OK
    if args.json:
        print_json(comparison)
        return code
    print_comparison(comparison, explain=args.explain)
    return code


def print_comparison(comparison: Mapping[str, Any], *, explain: bool = False) -> None:
    """Print the verdict, the figures of each machine type, and what they rest on."""
    decision = comparison.get("decision")
    for verdict in _verdict(comparison):
        terminal.print_message(terminal.sanitize(verdict))
    _print_rows(comparison)
    for difference in comparison["differences"]:
        values = "; ".join(f"{value or 'none'} ({', '.join(ids)})" for value, ids in difference["values"].items())
        terminal.print_message(f"differs: {terminal.sanitize(difference['name'])}: {terminal.sanitize(values)}")
    for text in comparison["notes"]:
        terminal.print_message(f"note: {terminal.sanitize(text)}")
    lines = [
        *comparison["results"],
        *_front_lines(comparison),
        *_judgements(comparison),
        *(decision["changes"] if decision else ()),
    ]
    if not explain and lines:
        lines = [f"--explain also prints {_EXPLAINED}"]
    for line in lines:
        terminal.print_message(terminal.sanitize(line))


def _decision_lines(comparison: Mapping[str, Any]) -> list[str]:
    decision = comparison.get("decision")
    return [*_verdict(comparison), *(f"  {text}" for text in (decision["changes"] if decision else ()))]


def _verdict(comparison: Mapping[str, Any]) -> list[str]:
    """Return the answer as a line; none from an older server without a decision."""
    decision = comparison.get("decision")
    verdict = comparison.get("verdict") or (decision["headline"] if decision else "")
    return [verdict] if verdict else []


def _print_rows(comparison: Mapping[str, Any]) -> None:
    """Print a table of the machine types, on a narrow terminal a block for each; remarks are numbered notes below."""
    heads, rows = _table(comparison)
    marks = {", ".join(row["marks"]): None for row in _all_rows(comparison) if row["marks"]}
    numbers = {text: f"[{number}]" for number, text in enumerate(marks, 1)}
    for cells, row in zip(rows, _all_rows(comparison)):
        cells[0] = " ".join((row["machineType"], *([numbers[", ".join(row["marks"])]] if row["marks"] else [])))
    if terminal.is_tty(sys.stdout) and terminal.width() < _WIDE:
        for cells in rows:
            print_fields(dict(zip(heads, cells)))
    else:
        print_table(
            heads,
            rows,
            whole=heads[1:_FIRST],
            spare=(_FRONT, "PEAK GPU", "PEAK MEMORY", "$/H", "COST/1000 STEPS", "BOUND BY"),
        )
    for text, number in numbers.items():
        terminal.print_message(terminal.sanitize(f"{number} {text}"))


def _exit_code(api: Api, comparison: Mapping[str, Any]) -> int:
    members = [member for row in comparison["rows"] for member in row["members"] if member["state"] != SUCCEEDED]
    jobs = [retry_until_connected(partial(api.job, member["jobId"])) for member in members]
    return max(map(exit_code, jobs), default=OK)


def wait(api: Api, comparison_id: str, changed: Callable[[Mapping[str, Any]], None] = lambda _: None) -> dict[str, Any]:
    """Return a comparison of which all jobs have ended; `changed` is called after each end."""
    ended, comparison = -1, api.comparison(comparison_id)
    while True:
        if comparison["ended"] != ended:
            ended = comparison["ended"]
            terminal.print_message(f"{ended} of {comparison['jobs']} jobs have ended")
            changed(comparison)
        if ended >= comparison["jobs"]:
            return comparison
        time.sleep(_WAIT_SECONDS)
        comparison = retry_until_connected(lambda: api.comparison(comparison_id))


def export(args: argparse.Namespace) -> int:
    if args.to is not None and args.format is not None:
        raise UsageError("--to and --format: use only one of them", hint="--to writes a file, --format prints a table.")
    api = connect(args)
    comparison_id = resolve_id(args.id, api)
    if args.to is not None:
        content = api.export_comparison(comparison_id)
        try:
            write_json(os.path.abspath(args.to), content, indent=None)
        except OSError as error:
            raise ClientError(f"cannot write {args.to}: {error.strerror}") from None
        terminal.print_message(f"wrote {terminal.sanitize(args.to)}; `gradient-cli compare import` reads it elsewhere")
        return OK
    comparison = api.comparison(comparison_id)
    if args.format == "json":
        print_json(comparison)
    elif args.format == "csv":
        _print_csv(comparison)
    else:
        _print_markdown(comparison)
    return OK


def import_file(args: argparse.Namespace) -> int:
    try:
        with open(args.file, "rb") as file:
            content = file.read(_FILE_BYTES + 1)
    except OSError as error:
        raise ClientError(f"cannot read {args.file}: {error.strerror}") from None
    if len(content) > _FILE_BYTES:
        raise ClientError(f"{args.file} is not an exported comparison: it is larger than {_FILE_BYTES:,} bytes")
    made = connect(args).import_comparison(content)
    print_json(made) if args.json else print(made["id"])
    terminal.print_message(f"imported; not ranked together with local comparisons: {terminal.sanitize(made['url'])}")
    return OK


def rename(args: argparse.Namespace) -> int:
    api = connect(args)
    named = api.rename_comparison(resolve_id(args.id, api), args.name)
    terminal.print_message(f"{terminal.sanitize(named['id'])}: {terminal.sanitize(named['name'] or 'no name')}")
    return OK


def delete(args: argparse.Namespace) -> int:
    if not args.id:
        raise UsageError("comparison: required", hint=f"Give its id, or {LAST}.")
    api = connect(args)
    comparison_id = resolve_id(args.id, api)
    api.delete_comparison(comparison_id)
    terminal.print_message(f"deleted {terminal.sanitize(comparison_id)}; its jobs are kept")
    return OK


def _table(comparison: Mapping[str, Any]) -> tuple[tuple[str, ...], list[list[str]]]:
    metric, target = comparison["metric"] or "", comparison["target"]
    heads = ["MACHINE", "RANKED"]
    heads += [f"COST TO {target:g}", f"TO {target:g}"] if target is not None else ["COST", "RAN"]
    heads += [metric.upper()] if metric else []
    heads += ["STEPS/S", "PACE", "JOBS", "COST/1000 STEPS", "$/H", "PEAK MEMORY", "PEAK GPU", "BOUND BY", _FRONT]
    return tuple(heads), [_row(row, metric, target) for row in _all_rows(comparison)]


def _all_rows(comparison: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [*comparison["rows"], *(row for program in comparison.get("sameProgram", ()) for row in program["rows"])]


def _row(row: Mapping[str, Any], metric: str, target: float | None) -> list[str]:
    cells = [
        f"{row['machineType']} ({', '.join(row['marks'])})" if row["marks"] else row["machineType"],
        ", ".join(row["labels"]),
    ]
    if target is None:
        cells += [_cost(row), _median_duration(row["seconds"])]
    else:
        cells += [_cost(row, "ToTarget"), _median_duration(row["secondsToTarget"])]
    cells += [_spread(row["final"])] if metric else []
    return [
        *cells,
        _spread(row["stepsPerSecond"]),
        "" if row["speedup"] is None else f"{row['speedup']:.3g} x",
        f"{row['succeeded']} of {row['jobs']}",
        _cost(row, "Per1000Steps"),
        f"${row['pricePerHour']:,.2f}",
        "" if row["peakMemoryBytes"] is None else format_memory(row["peakMemoryBytes"]),
        "" if row["peakGpuMemoryBytes"] is None else format_memory(row["peakGpuMemoryBytes"]),
        _bound(row),
        "; ".join(label for name, label in _front_names(metric).items() if row[name]),
    ]


def _front_names(metric: str) -> dict[str, str]:
    of_metric = {"onMetricTimeFront": f"{metric} and time", "onMetricCostFront": f"{metric} and cost"}
    return {**(of_metric if metric else {}), "onTimeCostFront": "time and cost"}


def _front_lines(comparison: Mapping[str, Any]) -> list[str]:
    """Return for each Pareto front its machine types with both figures, fastest or cheapest first."""
    lines = []
    for simulated in (False, True):
        for name, label in _front_names(comparison["metric"] or "").items():
            rows = [row for row in comparison["rows"] if row["simulated"] == simulated and row[name]]
            points = sorted(_front_point(row, name, comparison["target"]) for row in rows)
            if points:
                kind = " (simulated)" if simulated else ""
                lines.append(f"Pareto front of {label}{kind}: {', '.join(text for _, text in points)}")
    return lines


def _front_point(row: Mapping[str, Any], name: str, target: float | None) -> tuple[float, str]:
    """Return the figure by which a front is sorted, and both figures in words."""
    time, cost, until = row["seconds"], row["cost"], ""
    if name == "onTimeCostFront":
        if target is not None:
            time, until = row["secondsToTarget"], "ToTarget"
        return time["median"], f"{row['title']} ({_median_duration(time)} for {_cost(row, until)})"
    best = f"{row['final']['median']:.4g}"
    if name == "onMetricTimeFront":
        return time["median"], f"{row['title']} ({best} in {_median_duration(time)})"
    return cost, f"{row['title']} ({best} for {_cost(row)})"


def _cost(row: Mapping[str, Any], until: str = "") -> str:
    return format_cost({"cost": row[f"cost{until}"], "gpuHours": row.get(f"gpuHours{until}")})


def _bound(row: Mapping[str, Any]) -> str:
    bottleneck = row["bottleneck"]
    return "" if bottleneck is None else bottleneck["kind"] or "not measured"


def _judgements(comparison: Mapping[str, Any]) -> list[str]:
    """Return for each machine type what bounds it, the figures, and the advice."""
    lines = []
    for row in comparison["rows"]:
        judged = row["bottleneck"]
        if judged is not None:
            lines.append(f"{row['title']}: {' '.join(_sentences({**judged, 'advice': []}))}")
            lines += [f"  advice: {text}" for text in judged["advice"]]
    return lines


def _spread(spread: Mapping[str, float] | None) -> str:
    if spread is None:
        return ""
    return f"{spread['median']:.4g} ({spread['low']:.4g}-{spread['high']:.4g})"


def _median_duration(spread: Mapping[str, float] | None) -> str:
    return "" if spread is None else format_duration(spread["median"])


def _print_csv(comparison: Mapping[str, Any]) -> None:
    import csv

    writer = csv.writer(sys.stdout)
    rows = [_flat(row) for row in _all_rows(comparison)]
    if rows:
        writer.writerow(rows[0])
    writer.writerows(row.values() for row in rows)


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as columns, with a spread as three; every row of every comparison has the same."""
    flat: dict[str, Any] = {}
    for name, value in row.items():
        if name in {"stepsPerSecond", "final", "seconds", "secondsToTarget"}:
            spread = value or {"median": None, "low": None, "high": None}
            flat |= {name: spread["median"], f"{name}Low": spread["low"], f"{name}High": spread["high"]}
        elif name in {"slowerBy", "dearerBy", "worseBy"}:
            interval = value or {"value": None, "low": None, "high": None}
            flat |= {name: interval["value"], f"{name}Low": interval["low"], f"{name}High": interval["high"]}
        elif name in {"marks", "labels"}:
            flat[name] = "; ".join(value)
        elif name == "bottleneck":
            flat |= {name: _bound(row), "bottleneckSummary": value and value["summary"]}
        elif name != "members":
            flat[name] = value
    return flat


def _print_markdown(comparison: Mapping[str, Any]) -> None:
    heads, rows = _table(comparison)
    print("| " + " | ".join(map(_escape, heads)) + " |")
    print("|" + " --- |" * len(heads))
    for row in rows:
        print("| " + " | ".join(map(_escape, row)) + " |")
    for row in comparison["rows"]:
        if row["bottleneck"]:
            print(f"\n{_escape(row['title'])}: {_escape(' '.join(_sentences(row['bottleneck'])))}")
    for line in [*_decision_lines(comparison), *comparison["results"], *_front_lines(comparison)]:
        print(f"\n{_escape(line)}")
    for text in comparison["notes"]:
        print(f"\n{terminal.sanitize(text)}")


def _sentences(judged: Mapping[str, Any]) -> list[str]:
    figures = "; ".join(figure["text"] for figure in judged["figures"])
    return [judged["summary"], *([f"({figures})"] if figures else []), *judged["advice"]]


def _escape(cell: str) -> str:
    return terminal.sanitize(cell).replace("\\", "\\\\").replace("|", "\\|")
