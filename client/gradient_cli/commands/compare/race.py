"""`compare race`: repeats the jobs of a comparison until the cheapest machine type is known, below a ceiling."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect
from gradient_cli.commands.compare.show import add_id, print_comparison, resolve_id, wait
from gradient_cli.errors import INTERRUPTED, OK, UsageError
from gradient_cli.formatting import format_money, print_json
from gradient_cli.options import add_common, add_option

_LONGER = 1.2  # a further repeat may take this times as long as the longest before
_UNENDED = frozenset({"Pending", "Running", "Kept"})


def add_race(parser: argparse.ArgumentParser) -> None:
    add_id(parser)
    help_text = "ceiling of the cost of all jobs of the race"
    add_option(parser, "--maxCost", metavar="DOLLARS", type=float, required=True, help=help_text)
    add_common(parser, run)


def run(args: argparse.Namespace) -> int:
    if not 0 < args.maxCost < float("inf"):
        raise UsageError(f"--maxCost {args.maxCost:g}: must be a number of dollars above 0")
    api = connect(args)
    return race(api, resolve_id(args.id, api), args.maxCost, as_json=args.json)


def race(api: Api, comparison_id: str, ceiling: float, *, as_json: bool) -> int:
    """Repeat the machine types that may still be the best, until one is left or the ceiling allows no repeat."""
    try:
        while True:
            comparison = wait(api, comparison_id, lambda seen: _stop_losers(api, seen))
            names, why = plan_repeats(comparison, ceiling)
            if why:
                break
            terminal.print_message(
                f"repeat on {terminal.sanitize(', '.join(names))}, ${ceiling - spent(comparison):.4g} left"
            )
            api.repeat_comparison(comparison_id, names, ceiling)
    except KeyboardInterrupt:
        terminal.print_message(
            f"\ninterrupted; running jobs continue, and `gradient-cli compare race {comparison_id} --maxCost "
            f"{ceiling:g}` continues"
        )
        return INTERRUPTED
    if as_json:
        return print_json(comparison)
    print_comparison(comparison, explain=True)
    terminal.print_message(f"The race ended after {format_money(spent(comparison))} of ${ceiling:g}: {why}")
    return OK


def spent(comparison: Mapping[str, Any]) -> float:
    return (
        sum(float(row["pricePerHour"] * member["seconds"]) for row in comparison["rows"] for member in row["members"])
        / 3600
    )


def plan_repeats(comparison: Mapping[str, Any], ceiling: float) -> tuple[list[str], str | None]:
    """Return the machine types of the next repeat, or why there is none."""
    decision = comparison["decision"]
    if decision is None:
        return [], "fewer than two machine types have figures to compare."
    if len(decision["contenders"]) == 1:
        return [], "decided."
    if decision["moreRepeats"] is None:
        return [], "the rest show no measurable difference."
    rows = [
        row
        for row in comparison["rows"]
        if row["machineType"] in decision["contenders"] and row["simulated"] == decision["simulated"]
    ]
    wanted = {row["machineType"]: _repeat_cost(row) for row in rows}
    needed = sum(wanted.values())
    if needed > ceiling - spent(comparison):
        return [], f"another repeat would cost up to {format_money(needed)}."
    return list(wanted), None


def _repeat_cost(row: Mapping[str, Any]) -> float:
    longest: float = max(member["seconds"] for member in row["members"])
    return longest * _LONGER * float(row["pricePerHour"]) / 3600


def _stop_losers(api: Api, comparison: Mapping[str, Any]) -> None:
    """Stop the jobs of machine types that are known not to be the best."""
    decision = comparison["decision"]
    if decision is None:
        return
    rank = "cheapest" if decision["by"] == "cost" else "fastest"
    losing = [
        member["jobId"]
        for row in comparison["rows"]
        if row[rank] is not None and row[rank] > 1
        for member in row["members"]
        if member["state"] in _UNENDED
    ]
    if losing:
        terminal.print_message(f"stop {len(losing)} of machine types that have lost")
        api.act_on_jobs("stop", losing)
