from __future__ import annotations

from functools import partial

from gradient_cli import TYPE_CHECKING, terminal
from gradient_cli.commands.jobs import create as jobs
from gradient_cli.errors import OK
from gradient_cli.formatting import format_past, print_fields, print_json, print_result, print_table
from gradient_cli.options import add_common, add_option, add_positional, connect
from gradient_cli.workspace import job_spec as specs
from gradient_cli.workspace import workspace_path

if TYPE_CHECKING:
    import argparse
    from typing import Any

_DONE = {"suspend": "suspended: it creates no more jobs", "resume": "resumed; its next time is {}"}


def add_create(parser: argparse.ArgumentParser) -> None:
    add_option(
        parser,
        "--cron",
        metavar="TEXT",
        required=True,
        help="minute, hour, day of the month, month and day of the week: '0 3 * * *', '*/15 8-18 * * MON-FRI'",
    )
    add_option(
        parser, "--timezone", metavar="ZONE", default="UTC", help="its time zone, e.g. Europe/Berlin (default: UTC)"
    )
    add_option(
        parser,
        "--onMiss",
        choices=("skip", "once", "all"),
        default="once",
        help="for times at which the server was down: no job, one for all of them, or one for each (default: once)",
    )
    add_option(
        parser,
        "--onOverlap",
        choices=("queue", "skip", "replace"),
        default="queue",
        help="while a job of it has not ended: let the next one wait, have none, or stop it first (default: queue)",
    )
    specs.add_options(parser)
    jobs.add_large_workspace(parser)
    add_common(parser, create)


def add_list(parser: argparse.ArgumentParser) -> None:
    add_option(parser, "--limit", metavar="N", type=int, default=20, help="number of schedules (default: 20)")
    add_common(parser, list_schedules)


def _add_command(run: Any, parser: argparse.ArgumentParser, **defaults: str) -> None:  # noqa: ANN401
    add_positional(parser, "id", needed=True, metavar="ID", help="id of the schedule, as `schedules list` shows it")
    add_common(parser, run, **defaults)


def create(args: argparse.Namespace) -> int:
    from gradient_cli.api.paths import SCHEDULES
    from gradient_cli.workspace import submission

    if args.program:
        args.command = jobs.join_program(args.command, args.program)
    job, workspace, include = specs.resolve(args)
    api = connect(args)
    submission.choose_machine_type(api, job, terminal.print_message)
    spec = {**job, **{name: getattr(args, name) for name in ("cron", "timezone", "onMiss", "onOverlap")}}
    if workspace == "none" or workspace_path.is_url(workspace):
        jobs.check_no_include(args)
        made = api.create({**spec, "workspace": workspace}, to=SCHEDULES)
    else:
        folder = jobs.read_folder(args, workspace, include, args.largeWorkspace)
        made = submission.submit(api, spec, workspace, folder, to=SCHEDULES, planned=job)
    if args.json:
        return print_json(made)
    print(made["id"])
    times = "".join(f"\n  {moment}" for moment in _local_times(made))
    terminal.print_message(f"{terminal.sanitize(made['url'])}\nnext times{times}")
    return OK


def list_schedules(args: argparse.Namespace) -> int:
    found = connect(args).schedules({"limit": args.limit})
    if args.json:
        return print_json(found)
    if not found["schedules"]:
        terminal.print_message("no schedules; `gradient-cli schedules create --help` tells how to make one")
        return OK
    heads = ("ID", "NAME", "TIMES", "NEXT", "LAST JOB")
    print_table(heads, [_row(one) for one in found["schedules"]], spare=("TIMES",))
    return OK


def show(args: argparse.Namespace) -> int:
    found = connect(args).schedule(args.id)
    if args.json:
        return print_json(found)
    print_fields(
        {
            "id": found["id"],
            "name": found["name"],
            "times": f"{found['cron']} ({found['timezone']})",
            "next": ", ".join(_local_times(found)) or "suspended",
            "last job": _last(found),
            "machineType": found["machineType"],
            "command": found["command"],
            "project": found["project"],
            "owner": found["owner"] or found["ownerKey"],
            "onMiss": found["onMiss"],
            "onOverlap": found["onOverlap"],
            "url": found["url"],
        }
    )
    return OK


def change(args: argparse.Namespace) -> int:
    found = connect(args).change_schedule(args.id, args.action)
    text = _DONE[args.action].format(next(iter(_local_times(found)), ""))
    return print_result(args, found, f"schedule {found['id']} {text}")


def trigger(args: argparse.Namespace) -> int:
    job = connect(args).change_schedule(args.id, "trigger")
    if args.json:
        return print_json(job)
    print(job["id"])
    terminal.print_message(f"{terminal.sanitize(job['url'])}\n  follow it  gradient-cli jobs logs {job['id']} --follow")
    return OK


def delete(args: argparse.Namespace) -> int:
    connect(args).delete_schedule(args.id)
    deleted = {"id": args.id, "deleted": True}
    return print_result(args, deleted, f"deleted schedule {terminal.sanitize(args.id)}; its jobs stay")


add_show = partial(_add_command, show)
add_trigger = partial(_add_command, trigger)
add_delete = partial(_add_command, delete)
add_suspend = partial(_add_command, change, action="suspend")
add_resume = partial(_add_command, change, action="resume")


def _row(one: dict[str, Any]) -> list[str]:
    upcoming = next(iter(_local_times(one)), "suspended")
    return [one["id"], one["name"], f"{one['cron']} ({one['timezone']})", upcoming, _last(one)]


def _last(one: dict[str, Any]) -> str:
    """Describe the last job, or why the last time has none."""
    if one["refusal"]:
        return f"none {format_past(one['refusedAt'])}: {one['refusal']}"
    job = one["lastJob"]
    return f"{job['id']} {job['state']} ({format_past(job['createdAt'])})" if job else "none yet"


def _local_times(found: dict[str, Any]) -> list[str]:
    from gradient_cli.formatting import parse_time

    return [f"{parse_time(text).astimezone():%a %Y-%m-%d %H:%M %Z}" for text in found["nextTimes"]]
