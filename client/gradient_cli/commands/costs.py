from __future__ import annotations

import argparse
import sys

from gradient_cli.arguments import connect
from gradient_cli.errors import OK, UsageError
from gradient_cli.formatting import format_money, print_list
from gradient_cli.options import add_common


def add_show(parser: argparse.ArgumentParser) -> None:
    choices = ("project", "user", "key", "machine", "day")
    parser.add_argument("--by", choices=choices, default="project", help="what to sum by (default: project)")
    parser.add_argument("--days", metavar="N", type=int, default=30, help="days, today included (default: 30)")
    parser.add_argument("--csv", action="store_true", help="print CSV")
    add_common(parser, show)


def show(args: argparse.Namespace) -> int:
    if args.csv and args.json:
        raise UsageError("csv and json: cannot be combined", hint="Give one of them.")
    api = connect(args)
    if args.csv:
        sys.stdout.write(b"".join(api.costs_csv(args.by, args.days)).decode())
        return OK
    costs = api.costs(args.by, args.days)
    rows = [
        [
            row["name"],
            *map(format_money, (row["cost"], row["simulatedCost"])),
            f"{row['gpuHours']:,.2f}",
            f"{row['jobs']:,}",
        ]
        for row in costs["rows"]
    ]
    return print_list(args, costs, (args.by.upper(), "COST", "SIMULATED", "GPU HOURS", "JOBS"), rows)
