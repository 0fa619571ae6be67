"""`predict`: judge what bounds a job, and estimate it on other machine types."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gradient_cli import terminal
from gradient_cli.arguments import connect, resolve_job_id
from gradient_cli.errors import OK
from gradient_cli.formatting import format_duration, format_memory, format_money, print_json, print_table
from gradient_cli.options import add_common, add_job_id, add_option


def add_predict(parser: argparse.ArgumentParser) -> None:
    add_job_id(parser)
    add_option(parser, "--machineType", "-m", metavar="NAME,NAME,...", help="machine types (default: all)")
    add_option(
        parser,
        "--precision",
        choices=("float32", "mixed"),
        help="precision of the estimated runs (default: the job's precision)",
    )
    add_common(parser, predict)


def predict(args: argparse.Namespace) -> int:
    api = connect(args)
    prediction = api.predict(resolve_job_id(args.id, api), args.machineType, args.precision)
    if args.json:
        return print_json(prediction)
    where = f"{prediction['machineType']}{' (simulated)' if prediction['simulated'] else ''}"
    pace = "" if prediction["stepsPerSecond"] is None else f"{prediction['stepsPerSecond']:.4g} steps/s, "
    ran = ", ".join([format_duration(prediction["seconds"]), format_money(prediction["cost"])])
    print(f"measured on {terminal.sanitize(where)}: {pace}{ran}")
    _print_bottleneck(prediction["bottleneck"])
    if prediction["missing"]:
        terminal.print_message(f"nothing can be estimated: {_what_is_missing(prediction['missing'])}")
    if rows := [_row(machine) for machine in prediction["machines"] if machine["seconds"]]:
        print()
        for text in prediction["results"]:
            print(terminal.sanitize(text))
        estimates = (head for name in ("ESTIMATED TIME", "ESTIMATED COST", "SPEED") for head in (name, "INTERVAL"))
        print_table(("MACHINE", *estimates, "MEMORY", "CORRECTED BY"), rows)
    for text in prediction["notes"]:
        terminal.print_message(f"note: {terminal.sanitize(text)}")
    if not prediction["missing"]:
        terminal.print_message(terminal.sanitize(prediction["method"]))
    return OK


def _what_is_missing(names: Sequence[str]) -> str:
    return (
        f"the job has not reported {', '.join(names)} as numbers above 0. In PyTorch, JAX and Keras programs, "
        "`gradient_jobs.watch(model)` reports them; in others, `gradient_jobs.log(step=1, flops_per_step=...)`"
    )


def _print_bottleneck(bottleneck: Mapping[str, Any]) -> None:
    print(terminal.sanitize(bottleneck["summary"]))
    for figure in bottleneck["figures"]:
        print(f"  {terminal.sanitize(figure['text'])}")
    for text in bottleneck["advice"]:
        print(f"  advice: {terminal.sanitize(text)}")


def _row(machine: Mapping[str, Any]) -> list[str]:
    fits = {True: "fits", False: "too small", None: "not known"}[machine["fits"]]
    memory = "not measured" if machine["memoryBytes"] is None else f"{fits} ({format_memory(machine['memoryBytes'])})"
    corrected = machine["correction"]
    return [
        machine["machineType"],
        format_duration(machine["seconds"]["value"]),
        _interval(machine["seconds"], format_duration),
        format_money(machine["cost"]["value"]),
        _interval(machine["cost"], format_money),
        _times(machine["speedup"]["value"]),
        _interval(machine["speedup"], _times),
        memory,
        "" if corrected is None else f"{corrected['count']} measured, x {corrected['ratio']:.2f}",
    ]


def _times(factor: float) -> str:
    return f"{factor:.3g} x"


def _interval(estimate: Mapping[str, float], form: Callable[[float], str]) -> str:
    return f"{form(estimate['low'])} to {form(estimate['high'])}"
