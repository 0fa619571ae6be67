from __future__ import annotations

import argparse
from typing import Any

from gradient_cli import terminal
from gradient_cli.arguments import connect
from gradient_cli.errors import FAILED, OK
from gradient_cli.formatting import format_money, format_past, print_json, print_table

_ENDED = "job {}, which no longer runs on it: the worker deletes it"


def list_leaks(args: argparse.Namespace) -> int:
    """Print what is billed for no living job; the exit code is 1 if there is any, or if Google does not answer."""
    answer = connect(args).tpus()
    ended = [tpu for tpu in answer["tpus"] if not tpu["owned"]]
    leaks = {f"{tpu['zone']}/{tpu['name']}": _ENDED.format(tpu["jobId"]) for tpu in ended} | answer["unowned"]
    if args.json:
        print_json({"leaks": leaks, "refusal": answer["refusal"]})
    elif leaks:
        print_table(("NAME", "OWNER"), [[name, owner] for name, owner in leaks.items()])
    elif not answer["refusal"]:
        terminal.print_message("every billed TPU is owned by a living job")
    if not args.json:
        _print_refusal(answer)
    return FAILED if leaks or answer["refusal"] else OK


def _print_refusal(answer: dict[str, Any]) -> None:
    if answer.get("refusal"):
        terminal.print_message(f"Google has refused the workers' requests or not answered since {answer['refusal']}")


def list_tpus(args: argparse.Namespace) -> int:
    answer = connect(args).tpus()
    if args.json:
        return print_json(answer)
    if answer["tpus"]:
        heads = ("NAME", "ZONE", "TYPE", "PROVISIONING", "STATE", "HEALTH", "JOB", "BILLED SINCE", "COST")
        print_table(
            heads, [_row(tpu) for tpu in answer["tpus"]], whole=("JOB",), spare=("PROVISIONING", "HEALTH", "ZONE")
        )
    elif not answer["unowned"]:
        terminal.print_message("no TPUs are allocated or requested: nothing is billed")
    for tpu in answer["tpus"]:
        if tpu.get("detail"):
            terminal.print_message(f"{tpu['name']}: {tpu['detail']}")
    for name, owner in answer["unowned"].items():
        terminal.print_message(f"{name} is billed, too, for {owner}")
    _print_refusal(answer)
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
