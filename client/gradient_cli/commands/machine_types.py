"""`machine-types`: list the machine types."""

from __future__ import annotations

from gradient_cli import terminal
from gradient_cli.errors import OK
from gradient_cli.formatting import format_price, print_json, print_table
from gradient_cli.options import add_connection, add_json

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse
    from typing import Any


def add_machine_types(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=list_machine_types)


def list_machine_types(args: argparse.Namespace) -> int:
    from gradient_cli.api.client import connect

    found = connect(args).machine_types()
    if args.json:
        print_json(found)
        return OK
    kinds = found["machineTypes"]
    print_table(
        ("NAME", "ACCELERATOR", "MEMORY", "PRICE", "AVAILABLE", "BACKEND", "ALIASES"),
        [_row(kind) for kind in kinds],
    )
    if any(kind.get("simulated") for kind in kinds):
        terminal.print_message("simulated: the job really runs, but on the server's CPU")
    return OK


def _row(kind: dict[str, Any]) -> list[str]:
    number, accelerator = kind.get("count") or 0, str(kind.get("accelerator") or "")
    memory = kind.get("memoryGb")
    available = "simulated" if kind.get("simulated") else "yes"
    return [
        str(kind["name"]),
        f"{number} x {accelerator}" if number > 1 and accelerator else accelerator,
        f"{memory:g} GB" if memory else "",
        format_price(kind),
        available if kind.get("available") else "no",
        str(kind.get("backend") or ""),
        ", ".join(kind.get("aliases") or []),
    ]
