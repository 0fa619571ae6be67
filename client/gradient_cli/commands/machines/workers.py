from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from gradient_cli import terminal
from gradient_cli.arguments import connect
from gradient_cli.errors import OK
from gradient_cli.formatting import format_past, print_json, print_list
from gradient_cli.options import add_common, add_positional


def _add_change(parser: argparse.ArgumentParser, *, drained: bool) -> None:
    add_positional(parser, "name", needed=True, metavar="NAME", help="name of the worker, as `workers list` shows it")
    add_common(parser, change, "print the worker as one JSON object", drained=drained)


add_drain, add_resume = (partial(_add_change, drained=drained) for drained in (True, False))


def list_workers(args: argparse.Namespace) -> int:
    answer = connect(args).workers()
    heads, spare = ("NAME", "STATE", "HEARTBEAT", "JOBS", "GPUS", "TAKES"), ("TAKES", "HEARTBEAT")
    rows, empty = list(map(_row, answer["workers"])), "no worker has reported yet; `gradient-server worker` starts one"
    print_list(args, answer, heads, rows, empty, whole=("NAME",), spare=spare)
    for worker in answer["workers"] if not args.json else ():
        broken = [f"GPU {gpu['gpu']} is broken: {gpu['fault']}" for gpu in worker.get("gpus") or [] if gpu.get("fault")]
        for why in filter(None, (*(worker.get(name) for name in ("refusal", "lowDisk", "drainReason")), *broken)):
            terminal.print_message(f"{terminal.sanitize(worker['name'])}: {terminal.sanitize(why)}")
        if broken or worker.get("drainReason"):
            terminal.print_message(f"  gradient-cli workers resume {terminal.sanitize(worker['name'])}")
    return OK


def change(args: argparse.Namespace) -> int:
    worker = connect(args).set_drained(args.name, drained=args.drained)
    name = terminal.sanitize(worker["name"])
    if args.json:
        print_json(worker)
    elif not args.drained:
        terminal.print_message(f"worker {name} claims jobs again")
    else:
        count = len(worker.get("jobIds") or [])
        left = f"; {count} job{'s' * (count > 1)} still run{'s' * (count == 1)} on it" if count else ""
        terminal.print_message(f"worker {name} claims no more jobs{left}")
        terminal.print_message(f"  gradient-cli workers resume {name}")
    return OK


def _row(worker: dict[str, Any]) -> list[str]:
    gpus, backends = worker.get("gpus"), worker.get("backends")
    busy = sum(1 for gpu in gpus or [] if gpu.get("jobId") or gpu.get("takenBy") or gpu.get("fault"))
    return [
        str(worker["name"]),
        str(worker.get("state") or ""),
        format_past(worker.get("seenAt")),
        f"{len(worker.get('jobIds') or [])}/{worker.get('slots')}",
        "-" if gpus is None else f"{busy}/{len(gpus)}",
        f"{', '.join(worker.get('machineTypes') or ['all types'])} ({', '.join(backends)})" if backends else "nothing",
    ]
