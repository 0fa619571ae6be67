from __future__ import annotations

import time
from functools import partial

from gradient_cli import TYPE_CHECKING, terminal
from gradient_cli.commands import templates
from gradient_cli.commands.jobs import create as jobs
from gradient_cli.errors import FAILED, OK, UsageError
from gradient_cli.formatting import format_past, print_fields, print_json, print_result, print_table
from gradient_cli.options import add_common, add_option, add_positional, connect
from gradient_cli.workspace import job_spec as specs
from gradient_cli.workspace import project_file

if TYPE_CHECKING:
    import argparse
    from typing import Any

# Every option of a sweep that no job has: its type, and its placeholder and help text.
_OPTIONS: dict[str, tuple[Any, str, str]] = {
    "method": (str, "tpe|random|grid", "how parameters are chosen (default: tpe)"),
    "metric": (str, "NAME:min|max", "metric that trials log, and whether low or high is good, such as val_loss:min"),
    "stop": (str, "asha|median", "stop trials early that are not in the best third, or worse than the median"),
    "stopAfter": (int, "N", "number of values of the metric after which a trial may first be stopped (default: 1)"),
    "trials": (int, "N", "number of trials; of a grid by default all"),
    "parallel": (int, "N", "most trials that run at once (default: 4)"),
    "maxHours": (float, "HOURS", "budget: hours of all its jobs together"),
    "maxDollars": (float, "DOLLARS", "budget: cost of all its jobs together"),
    "seed": (int, "N", "the same seed tries the same values (default: 0)"),
}
_POLL_SECONDS = 2.0
_DONE = {"pause": "paused: it begins no more trials", "resume": "goes on", "stop": "stopped, with its running trials"}


def add_create(parser: argparse.ArgumentParser) -> None:
    add_positional(
        parser,
        "file",
        nargs="?",
        metavar="FILE",
        help="TOML file with these options, and a table [params] of what to try",
    )
    for name, (kind, metavar, text) in _OPTIONS.items():
        add_option(parser, f"--{name}", metavar=metavar, type=kind, help=text)
    specs.add_options(parser, without="metricPatterns")
    specs.describe(
        parser,
        "param",
        "NAME=VALUES",
        "what to try of a parameter: LOW..HIGH, log:LOW..HIGH, LOW..HIGH/N for N values of it, or A,B,C; repeatable. "
        "Each job has its own in $GRADIENT_PARAMS, as JSON, and in $GRADIENT_ARRAY_VALUE, as --lr=0.01 --opt=adam",
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
        raise UsageError("param: a sweep needs one", hint="For example --param lr=log:1e-5..1e-1 --param opt=adam,sgd.")
    made = templates.create(args, "sweeps", resolved, {**plan, "space": space})
    commands = "".join(f"\n  gradient-cli sweeps {command} {made['id']}" for command in ("show", "wait", "stop"))
    return templates.print_created(args, made, commands)


def show(args: argparse.Namespace) -> int:
    api = connect(args)
    found = api.template("sweeps", templates.chosen(args, api))
    if args.json:
        return print_json(found)
    print_fields(
        {
            "id": found["id"],
            "name": found["name"],
            "state": found["state"],
            "why": found["reason"] or "",
            "trials": _counts(found),
            "best": _best(found),
            "metric": f"{found['metric']} ({found['goal']})" if found["metric"] else "",
            "method": found["method"] + (f", stopped by {found['stop']}" if found["stop"] else ""),
            "ran": f"{found['hours']:.2f} hours, ${found['dollars']:.4f}",
            "machineType": found["machineType"],
            "command": found["command"],
            "owner": found["owner"] or found["ownerKey"],
            "url": found["url"],
        }
    )
    names = list(found["space"])
    best = found["best"]["number"] if found["best"] else None
    rows = [
        [
            str(trial["number"]) + ("*" if trial["number"] == best else ""),
            trial["jobId"] or "",
            trial["state"],
            *(_number(trial["params"].get(name)) for name in names),
            _number(trial["value"]),
            _number(trial["best"]),
            trial["reason"] or "",
        ]
        for trial in found["trials"]
    ]
    print_table(
        ("TRIAL", "JOB", "STATE", *(name.upper() for name in names), "LAST", "BEST", "WHY"), rows, spare=("WHY",)
    )
    return OK


def wait(args: argparse.Namespace) -> int:
    """Wait until a sweep has ended; the exit code is 1 if it ended without a complete trial, or paused."""
    from gradient_cli.api.retries import retry_until_connected

    api, shown = connect(args), ""
    sweep = templates.chosen(args, api)
    while True:
        found = retry_until_connected(lambda: api.template("sweeps", sweep))
        text = f"sweep {found['id']}: {found['state']}, {_counts(found)}"
        if text != shown:
            terminal.print_message(terminal.sanitize(text))
            shown = text
        if found["state"] != "running" and not found["counts"].get("running"):
            break
        time.sleep(_POLL_SECONDS)
    if args.json:
        print_json(found)
    elif found["best"]:
        print(f"{found['best']['jobId'] or found['id']}  {terminal.sanitize(_best(found))}")
    if found["reason"]:
        terminal.print_message(terminal.sanitize(found["reason"]))
    return OK if found["counts"].get("complete") and found["state"] != "paused" else FAILED


def change(args: argparse.Namespace) -> int:
    api = connect(args)
    found = api.change_template("sweeps", templates.chosen(args, api), args.action)
    return print_result(args, found, f"sweep {found['id']} {_DONE[args.action]}")


def _row(one: dict[str, Any]) -> list[str]:
    age = format_past(one["createdAt"])
    return [one["id"], one["name"], one["state"], _counts(one), _best(one), f"${one['dollars']:.2f}", age]


def _counts(one: dict[str, Any]) -> str:
    total = sum(one["counts"].values())
    states = ", ".join(f"{count} {state}" for state, count in sorted(one["counts"].items()))
    return f"{total} of {one['maxTrials']}" + (f": {states}" if states else "")


def _best(one: dict[str, Any]) -> str:
    best = one["best"]
    if best is None:
        return ""
    params = " ".join(f"{name}={_number(value)}" for name, value in best["params"].items())
    return f"{one['metric']} {_number(best['value'])} in trial {best['number']}: {params}"


def _number(value: Any) -> str:  # noqa: ANN401 - a parameter
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)


add_list = partial(
    templates.add_list,
    noun="sweeps",
    heads=("ID", "NAME", "STATE", "TRIALS", "BEST", "COST", "AGE"),
    row=_row,
    spare=("BEST",),
)
add_show = partial(templates.add_command, noun="sweeps", run=show)
add_wait = partial(templates.add_command, noun="sweeps", run=wait)
add_delete = partial(templates.add_command, noun="sweeps", run=templates.delete, needed=True)
add_pause = partial(templates.add_command, noun="sweeps", run=change, action="pause")
add_resume = partial(templates.add_command, noun="sweeps", run=change, action="resume")
add_stop = partial(templates.add_command, noun="sweeps", run=change, action="stop")
