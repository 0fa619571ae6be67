from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.retries import retry_until_connected
from gradient_cli.arguments import connect
from gradient_cli.commands import templates
from gradient_cli.commands.jobs import create as jobs
from gradient_cli.errors import FAILED, OK, UsageError
from gradient_cli.formatting import (
    format_cost,
    format_count,
    format_duration,
    format_past,
    print_fields,
    print_json,
    print_result,
    print_table,
)
from gradient_cli.options import add_common, add_option, add_positional
from gradient_cli.workspace import job_spec as specs
from gradient_cli.workspace import project_file

# Every option of a sweep that no job has: its type, and its placeholder and help text.
_OPTIONS: dict[str, tuple[Any, str, str]] = {
    "method": (str, "tpe|random|grid", "how parameters are chosen (default: tpe)"),
    "metric": (
        str,
        "NAME:min|max",
        "metric that trials log, with min or max as the better direction, such as val_loss:min",
    ),
    "stop": (
        str,
        "asha|median",
        "stop trials early that are not in the best third (asha) or are worse than the median",
    ),
    "stopAfter": (int, "N", "number of values of the metric after which a trial may first be stopped (default: 1)"),
    "trials": (int, "N", "number of trials (default for a grid: all combinations)"),
    "parallel": (int, "N", "maximum trials running at once (default: 4)"),
    "seed": (int, "N", "the same seed tries the same values (default: 0)"),
}
_POLL_SECONDS = 2.0
_DONE = {"pause": "paused: it starts no more trials", "resume": "goes on", "stop": "stopped, with its running trials"}
_NAMED = 10  # trials in a message


def add_create(parser: argparse.ArgumentParser) -> None:
    add_positional(
        parser,
        "file",
        nargs="?",
        metavar="FILE",
        help="TOML file with these options and a table [params] of values to try",
    )
    for name, (kind, metavar, text) in _OPTIONS.items():
        add_option(parser, f"--{name}", metavar=metavar, type=kind, help=text)
    specs.add_options(parser, without="metricPatterns", title="what to try", options=" ".join(("param", *_OPTIONS)))
    templates.hide_refused(parser)
    specs.describe(
        parser,
        "param",
        "NAME=VALUES",
        "values to try for a parameter: LOW..HIGH, log:LOW..HIGH, LOW..HIGH/N for N values from that range, A,B,C, "
        "or flag for an option that is present or absent; repeatable. Each job gets its values in "
        "$GRADIENT_PARAMS, as JSON, and in $GRADIENT_ARRAY_VALUE, as --lr=0.01 --opt=adam",
    )
    jobs.add_large_workspace(parser)
    add_common(parser, create)


def create(args: argparse.Namespace) -> int:
    """Create a sweep from flags, its file, the project file and the folder."""
    if args.program:
        args.command = jobs.join_program(args.command, args.program)
    filed = project_file.read(args.file) if args.file else {}
    plan = {name: filed.pop(name) for name in _OPTIONS if name in filed}
    plan |= {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    resolved = specs.resolve(args, line=filed)
    space = resolved[0].pop("params", {})
    if not space:
        raise UsageError(
            "param: a sweep needs at least one", hint="For example --param lr=log:1e-5..1e-1 --param opt=adam,sgd."
        )
    made = templates.create(args, "sweeps", resolved, {**plan, "space": space})
    commands = "".join(f"\n  gradient-cli sweeps {command} {made['id']}" for command in ("show", "wait", "stop"))
    return templates.print_created(args, made, commands)


def show(args: argparse.Namespace) -> int:
    api = connect(args)
    sweep = api.template("sweeps", templates.chosen(args, api))
    if args.json:
        return print_json(sweep)
    stops = f", trials stopped early by {sweep['stop']}" if sweep["stop"] else ""
    print_fields(
        {
            "id": sweep["id"],
            "name": sweep["name"],
            "state": sweep["state"],
            "why": sweep["reason"] or "",
            "trials": _counts(sweep),
            "best": _best(sweep),
            "metric": f"{sweep['metric']} ({sweep['goal']})" if sweep["metric"] else "",
            "method": sweep["method"] + stops,
            "ran": f"{_duration(sweep)}, {_cost(sweep, sweep['machineType'])}",
            "machineType": sweep["machineType"],
            "command": sweep["command"],
            "owner": sweep["owner"] or sweep["ownerKey"],
            "url": sweep["url"],
        }
    )
    _print_trials(sweep)
    return OK


def _print_trials(sweep: dict[str, Any]) -> None:
    names = list(sweep["space"])
    best = sweep["best"]["number"] if sweep["best"] else None
    rows = [
        [
            str(trial["number"]) + ("*" if trial["number"] == best else ""),
            trial["jobId"] or "",
            trial["state"],
            *(_number(trial["params"].get(name)) for name in names),
            _last(sweep, trial),
            _number(trial["best"]),
            trial["reason"] or "",
        ]
        for trial in sweep["trials"]
    ]
    print_table(
        ("TRIAL", "JOB", "STATE", *(name.upper() for name in names), "LAST", "BEST", "WHY"), rows, spare=("WHY",)
    )


def wait(args: argparse.Namespace) -> int:
    """Wait until a sweep has ended; the exit code is 1 if it paused, or ended without the result that it searched."""
    api, shown = connect(args), ""
    sweep_id = templates.chosen(args, api)
    while True:
        sweep = retry_until_connected(lambda: api.template("sweeps", sweep_id))
        ended = sweep["state"] != "running" and not sweep["counts"].get("running")
        text = f"sweep {sweep['id']}: {sweep['state']}, {_counts(sweep)}"
        text += f". {sweep['reason']}" if sweep["reason"] and not ended else ""
        if text != shown:
            terminal.print_message(terminal.sanitize(text))
            shown = text
        if ended:
            break
        time.sleep(_POLL_SECONDS)
    if args.json:
        print_json(sweep)
    elif sweep["best"]:
        print(f"{sweep['best']['jobId'] or sweep['id']}  {terminal.sanitize(_best(sweep))}")
    if sweep["reason"]:
        terminal.print_message(terminal.sanitize(sweep["reason"]))
    result = sweep["best"] if sweep["metric"] else sweep["counts"].get("complete")
    return OK if result and sweep["state"] != "paused" else FAILED


def change(args: argparse.Namespace) -> int:
    api = connect(args)
    sweep = api.change_template("sweeps", templates.chosen(args, api), args.action)
    again = [str(trial["number"]) for trial in sweep["trials"] if trial["state"] == "waiting"]
    text = f"sweep {sweep['id']} {_DONE[args.action]}"
    if again and args.action == "resume":
        named = ", ".join(again[:_NAMED]) + (", …" if len(again) > _NAMED else "")
        text += f"; {format_count(len(again), 'trial')} without a result will run again: {named}"
    return print_result(args, sweep, text)


def _row(sweep: dict[str, Any]) -> list[str]:
    amounts = [_duration(sweep), _cost(sweep)]
    return [
        *(sweep["id"], sweep["name"], sweep["state"], _counts(sweep), _best(sweep)),
        *(*amounts, format_past(sweep["createdAt"])),
    ]


def _cost(sweep: dict[str, Any], machine_type: str = "") -> str:
    return format_cost({"cost": sweep["dollars"], "gpuHours": sweep["gpuHours"]}, machine_type)


def _duration(sweep: dict[str, Any]) -> str:
    return format_duration(sweep["hours"] * 3600)


def _counts(sweep: dict[str, Any]) -> str:
    total = sum(sweep["counts"].values())
    states = ", ".join(f"{count} {state}" for state, count in sorted(sweep["counts"].items()))
    return f"{total} of {sweep['maxTrials']}" + (f": {states}" if states else "")


def _best(sweep: dict[str, Any]) -> str:
    best = sweep["best"]
    if best is None:
        return ""
    params = " ".join(f"{name}={_number(value)}" for name, value in best["params"].items())
    state = "" if best["state"] == "complete" else f" ({best['state']})"
    return f"{sweep['metric']} {_number(best['value'])} in trial {best['number']}{state}: {params}"


def _last(sweep: dict[str, Any], trial: dict[str, Any]) -> str:
    without_number = sweep["metric"] and trial["state"] == "complete" and trial["value"] is None
    return "not finite" if without_number else _number(trial["value"])


def _number(value: Any) -> str:  # noqa: ANN401 - a parameter
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


add_list = partial(
    templates.add_list,
    noun="sweeps",
    heads=("ID", "NAME", "STATE", "TRIALS", "BEST", "RAN", "COST", "AGE"),
    row=_row,
    spare=("BEST",),
)
add_show = partial(templates.add_command, noun="sweeps", run=show)
add_wait = partial(templates.add_command, noun="sweeps", run=wait)
add_delete = partial(templates.add_command, noun="sweeps", run=templates.delete, needed=True)
add_pause = partial(templates.add_command, noun="sweeps", run=change, action="pause")
add_resume = partial(templates.add_command, noun="sweeps", run=change, action="resume")
add_stop = partial(templates.add_command, noun="sweeps", run=change, action="stop")
