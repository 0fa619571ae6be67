"""`compare race`: repeats the jobs of a comparison until the cheapest machine type is known, within a budget."""

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
    add_budget(parser, required=True)
    add_common(parser, run)


def add_budget(parser: argparse.ArgumentParser, *, required: bool) -> None:
    add_option(
        parser,
        "--budget",
        metavar="DOLLARS",
        type=float,
        required=required,
        help="maximum total list price of all jobs of the race, enforced by their time limits",
    )


def run(args: argparse.Namespace) -> int:
    check_budget(args.budget)
    api = connect(args)
    return race(api, resolve_id(args.id, api), args.budget, as_json=args.json)


def check_budget(budget: float) -> None:
    if not 0 < budget < float("inf"):
        raise UsageError(f"--budget {budget:g}: must be a number of dollars above 0")


def race(api: Api, comparison_id: str, budget: float, *, as_json: bool) -> int:
    """Repeat the machine types that may still be the best, until one is left or the budget allows no repeat."""
    try:
        while True:
            comparison = wait(api, comparison_id, lambda seen: _stop_losers(api, seen))
            costs, why = plan_repeats(comparison, budget)
            if why:
                break
            terminal.print_message(
                f"repeat on {terminal.sanitize(', '.join(costs))}, ${budget - spent(comparison):.4g} left"
            )
            api.repeat_comparison(comparison_id, costs)
    except KeyboardInterrupt:
        terminal.print_message(
            f"\ninterrupted; running jobs continue, and `gradient-cli compare race {comparison_id} --budget "
            f"{budget:g}` continues"
        )
        return INTERRUPTED
    if as_json:
        return print_json(comparison)
    print_comparison(comparison, explain=True)
    terminal.print_message(f"The race ended after {format_money(spent(comparison))} of ${budget:g}: {why}")
    return OK


def spent(comparison: Mapping[str, Any]) -> float:
    return (
        sum(float(row["pricePerHour"] * member["seconds"]) for row in comparison["rows"] for member in row["members"])
        / 3600
    )


def plan_repeats(comparison: Mapping[str, Any], budget: float) -> tuple[dict[str, float | None], str | None]:
    """Return what the next repeat may cost on each machine type, or why there is none."""
    decision = comparison["decision"]
    if decision is None:
        return {}, "fewer than two machine types have figures to compare."
    if len(decision["contenders"]) == 1:
        return {}, "decided."
    if decision["moreRepeats"] is None:
        return {}, "the rest show no measurable difference."
    rows = [
        row
        for row in comparison["rows"]
        if row["machineType"] in decision["contenders"] and row["simulated"] == decision["simulated"]
    ]
    wanted = {row["machineType"]: _repeat_cost(row) for row in rows}
    left, needed = budget - spent(comparison), sum(wanted.values())
    if needed > left:
        return {}, f"another repeat would cost up to {format_money(needed)}."
    share = left / needed if needed else 1.0
    return {name: cost * share if cost else None for name, cost in wanted.items()}, None


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
