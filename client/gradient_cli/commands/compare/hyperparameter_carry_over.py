"""`--carry-from`: hyper-parameters of a measured job, carried over to another machine type."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import resolve_job_id
from gradient_cli.errors import UsageError


def add_carry_options(parser: argparse.ArgumentParser, *, may_apply: bool = True) -> None:
    """Add `--carry-from` and, for commands that submit one job, `--apply-carry`."""
    parser.add_argument(
        "--carry-from",
        dest="carryFrom",
        metavar="JOB",
        help="show this measured job's batch size, learning rate and weight decay, adapted to the machine type",
    )
    if may_apply:
        parser.add_argument(
            "--apply-carry",
            dest="applyCarry",
            action="store_true",
            help="add the values from --carry-from to the command: --batch-size, --learning-rate, --weight-decay",
        )


def carry(args: argparse.Namespace, api: Api, machine_types: str, command: str | None) -> str | None:
    """Print the hyper-parameters for machine types.

    Returns the command with them, if they are to be applied, else the command as it is.
    """
    apply = getattr(args, "applyCarry", False)
    source = getattr(args, "carryFrom", None)  # notebooks have none
    if source is None:
        if apply:
            raise UsageError("apply-carry: needs a job", hint="Name the job with --carry-from JOB.")
        return command
    job_id = resolve_job_id(source, api)
    prediction = api.predict(job_id, machine_types)
    if prediction["missingHyperparameters"]:
        raise UsageError(
            f"carry-from: job {job_id} has not reported {', '.join(prediction['missingHyperparameters'])}",
            hint="The trainer reports them when it ends; other programs can report them too: see docs/metrics.md "
            "for the names.",
        )
    if apply and not command:
        raise UsageError("apply-carry: the job has no command", hint="Give one with --command.")
    arguments = ""
    for machine in prediction["machines"]:
        arguments = _describe(machine, job_id)
    if apply:
        terminal.print_message(f"  applied: {terminal.sanitize(command or '')} {arguments}")
        return f"{command} {arguments}"
    terminal.print_message(
        "  not applied; --apply-carry adds the arguments to the command"
        if hasattr(args, "applyCarry")
        else "  not applied: all jobs of a comparison have the same command"
    )
    return command


def _describe(machine: Mapping[str, Any], job_id: str) -> str:
    carried = machine["carryOver"]
    replicas = f"{carried['replicas']} replica{'s' * (carried['replicas'] > 1)}"
    terminal.print_message(f"carried over from {job_id} to {terminal.sanitize(machine['machineType'])}, {replicas}:")
    for reason in carried["reasons"]:
        terminal.print_message(f"  {terminal.sanitize(reason)}")
    values = {"batch-size": "batchSize", "learning-rate": "learningRate", "weight-decay": "weightDecay"}
    arguments = " ".join(f"--{flag} {carried[name]:.10g}" for flag, name in values.items() if carried[name] is not None)
    terminal.print_message(f"  arguments: {arguments}")
    return arguments
