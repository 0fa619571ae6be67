from __future__ import annotations

import argparse
from typing import Any

from gradient_cli import terminal
from gradient_cli.arguments import connect
from gradient_cli.errors import OK
from gradient_cli.formatting import format_money, format_past, print_json, print_table
from gradient_cli.options import add_common


def add_list(parser: argparse.ArgumentParser) -> None:
    add_common(parser, list_tpus)


def list_tpus(args: argparse.Namespace) -> int:
    answer = connect(args).tpus()
    if args.json:
        print_json(answer)
    elif not answer["tpus"]:
        terminal.print_message("no TPUs are allocated or requested: nothing is billed")
    else:
        heads = ("NAME", "ZONE", "TYPE", "PROVISIONING", "STATE", "HEALTH", "JOB", "BILLED SINCE", "COST")
        print_table(
            heads, [_row(tpu) for tpu in answer["tpus"]], whole=("JOB",), spare=("PROVISIONING", "HEALTH", "ZONE")
        )
    if not args.json:
        for tpu in answer["tpus"]:
            if tpu.get("detail"):
                terminal.print_message(f"{tpu['name']}: {tpu['detail']}")
        if answer.get("refusal"):
            terminal.print_message(
                f"Google has refused the workers' requests or not answered since {answer['refusal']}"
            )
        if answer.get("recentCost"):
            cost = format_money(answer["recentCost"])
            terminal.print_message(f"all TPUs of the last 30 days cost {cost}, including those of deleted jobs")
    return OK


def _row(tpu: dict[str, Any]) -> list[str]:
    simulated = " (simulated)" if tpu.get("simulated") else ""
    return [
        str(tpu["name"]),
        str(tpu.get("zone") or ""),
        f"{tpu.get('machineType') or ''}{simulated}",
        str(tpu.get("provisioning") or ""),
        str(tpu.get("state") or ""),
        str(tpu.get("health") or ""),
        str(tpu.get("jobId") or ""),
        format_past(tpu.get("billedAt")) or "not yet",
        format_money(tpu.get("cost")),
    ]
