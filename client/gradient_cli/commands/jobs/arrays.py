"""Commands on whole arrays of jobs."""

from __future__ import annotations

import argparse
from typing import Any

from gradient_cli import follow, terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import is_array_id
from gradient_cli.errors import INTERRUPTED, OK, UsageError
from gradient_cli.follow import print_notes
from gradient_cli.formatting import describe_members, format_cost, format_duration, format_money, print_json


def wait(args: argparse.Namespace, api: Api, ids: list[str], timeout: float | None) -> int:
    """Wait until all members of arrays have ended; the exit code is 1 if one of them did not succeed."""
    if not all(map(is_array_id, ids)):
        raise UsageError("ids: arrays and jobs cannot be mixed", hint="Wait for them separately.")
    try:
        arrays = [follow.wait_for_array(api, array_id, timeout) for array_id in ids]
    except KeyboardInterrupt:
        terminal.print_message("\ndetached; the jobs keep running")
        return INTERRUPTED
    if args.json:
        print_json(arrays[0] if len(arrays) == 1 else {"jobs": arrays})
    for array in arrays:
        follow.print_array_summary(array)
    return max(map(follow.array_exit_code, arrays))


def describe(array: dict[str, Any]) -> dict[str, str]:
    return {
        "id": str(array["arrayId"]),
        "name": str(array.get("name") or ""),
        "members": describe_members(array.get("arrayMembers") or {}),
        "machineType": str(array.get("machineType") or ""),
        "command": str(array.get("command") or ""),
        "ran": format_duration(array.get("durationSeconds")),
        cost_label(array): format_cost(array, str(array.get("machineType") or "")) + describe_ceiling(array),
    }


def cost_label(job: dict[str, Any]) -> str:
    return "would cost" if job.get("simulated") else "cost"


def describe_ceiling(job: dict[str, Any]) -> str:
    most, hours = job.get("maxCost"), job.get("maxGpuHours")
    ceilings = (f" of {format_money(most)}" if most else "") + (f" of {hours:g} GPU hours" if hours else "")
    is_shared = job.get("costSet") and not job.get("arrayMembers")
    return f"{ceilings} shared with other jobs" if ceilings and is_shared else ceilings


def wait_or_detach(args: argparse.Namespace, api: Api, first: dict[str, Any]) -> int:
    array_id = str(first["arrayId"])
    if args.detach:
        print(array_id)
    print_notes(first)
    commands = ("wait", "list --array", "logs", "stop")
    lines = "".join(f"\n  gradient-cli jobs {command} {array_id}" for command in commands)
    what = f"{first['nodes']} nodes" if first.get("nodes") else "array"
    terminal.print_message(f"{what} {array_id}{lines}")
    return OK if args.detach else wait(args, api, [array_id], None)
