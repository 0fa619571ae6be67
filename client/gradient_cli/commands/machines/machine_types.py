from __future__ import annotations

import argparse
from typing import Any

from gradient_cli import terminal
from gradient_cli.arguments import connect
from gradient_cli.errors import OK
from gradient_cli.formatting import format_price, print_json, print_table
from gradient_cli.options import add_common

_SHOWN = ("fp32", "tf32", "bf16", "fp16")
_HEADS = ("NAME", "ACCELERATOR", "MEMORY", "GB/S", "TFLOPS", "PRICE", "PRICE OF", "AVAILABLE", "BACKEND", "ALIASES")
_WIDE = ("GB/S", "TFLOPS", "PRICE OF", "BACKEND", "ALIASES")


def add_machine_types(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--available", action="store_true", help="only machine types that jobs can run on now")
    parser.add_argument("--wide", action="store_true", help=f"also {', '.join(_WIDE)}")
    add_common(parser, list_machine_types)


def list_machine_types(args: argparse.Namespace) -> int:
    answer = connect(args).machine_types()
    kinds = [kind for kind in answer["machineTypes"] if kind.get("available") or not args.available]
    if args.json:
        return print_json({**answer, "machineTypes": kinds})
    heads = [head for head in _HEADS if args.wide or head not in _WIDE]
    rows = [_row(kind) for kind in sorted(kinds, key=lambda kind: bool(kind.get("simulated")))]
    print_table(heads, [[row[head] for head in heads] for row in rows], whole=("PRICE", "AVAILABLE"))
    if any(kind.get("simulated") for kind in kinds):
        terminal.print_message(
            "simulated: for trying things out; jobs really run, but on the server's CPU. "
            "GRADIENT_MACHINES__OFFER_SIMULATED=false hides them."
        )
    if old := [kind["name"] for kind in kinds if kind.get("priceIsOld")]:
        terminal.print_message(
            f"prices older than six months: {len(old)} of {len(kinds)}, for example {old[0]}; set your own in "
            "GRADIENT_MACHINES__FILE"
        )
    return OK


def format_peaks(tflops: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.6g}" for name, value in tflops.items() if name in _SHOWN)


def _row(kind: dict[str, Any]) -> dict[str, str]:
    number, accelerator = kind.get("count") or 0, str(kind.get("accelerator") or "")
    memory = kind.get("memoryGb")
    available = "simulated" if kind.get("simulated") else "yes"
    cells = [
        str(kind["name"]),
        f"{number} x {accelerator}" if number > 1 and accelerator else accelerator,
        f"{memory:g} GB" if memory else "",
        f"{kind['memoryBandwidthGbps']:g}" if kind.get("memoryBandwidthGbps") else "",
        format_peaks(kind.get("tflops") or {}),
        format_price(kind),
        str(kind.get("priceSource") or "").removeprefix("list price, set your own: "),
        available if kind.get("available") else "no",
        str(kind.get("backend") or ""),
        ", ".join(kind.get("aliases") or []),
    ]
    return dict(zip(_HEADS, cells))
