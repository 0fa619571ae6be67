from __future__ import annotations

import argparse
from datetime import tzinfo
from functools import partial
from typing import Any

from gradient_cli import terminal
from gradient_cli.arguments import connect
from gradient_cli.commands import templates
from gradient_cli.commands.jobs import create as jobs
from gradient_cli.errors import OK
from gradient_cli.formatting import format_past, parse_time, print_fields, print_json, print_result, state_word
from gradient_cli.options import add_common, add_option
from gradient_cli.workspace import job_spec as specs

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
        help="for times missed while the server was down: no job, one for all of them, or one for each (default: once)",
    )
    add_option(
        parser,
        "--onOverlap",
        choices=("queue", "skip", "replace"),
        default="queue",
        help="if a job of the schedule has not ended: let the next one wait, skip the next one, or stop the old one "
        "(default: queue)",
    )
    specs.add_options(parser, title="times", options="cron timezone onMiss onOverlap")
    templates.hide_refused(parser)
    jobs.add_large_workspace(parser)
    add_common(parser, create)


def create(args: argparse.Namespace) -> int:
    if args.program:
        args.command = jobs.join_program(args.command, args.program)
    fields = {name: getattr(args, name) for name in ("cron", "timezone", "onMiss", "onOverlap")}
    made = templates.create(args, "schedules", specs.resolve(args), fields)
    times = "".join(f"\n  {moment}" for moment in _local_times(made))
    return templates.print_created(args, made, f"\nnext times{times}")


def show(args: argparse.Namespace) -> int:
    api = connect(args)
    schedule = api.template("schedules", templates.chosen(args, api))
    if args.json:
        return print_json(schedule)
    print_fields(
        {
            "id": schedule["id"],
            "name": schedule["name"],
            "times": f"{schedule['cron']} ({schedule['timezone']})",
            "next": _next(_local_times(schedule), schedule),
            "last job": _last(schedule),
            "machineType": schedule["machineType"],
            "command": schedule["command"],
            "project": schedule["project"],
            "owner": schedule["owner"] or schedule["ownerKey"],
            "onMiss": schedule["onMiss"],
            "onOverlap": schedule["onOverlap"],
            "url": schedule["url"],
        }
    )
    return OK


def change(args: argparse.Namespace) -> int:
    api = connect(args)
    schedule = api.change_template("schedules", templates.chosen(args, api), args.action)
    text = _DONE[args.action].format(next(iter(_local_times(schedule)), ""))
    return print_result(args, schedule, f"schedule {schedule['id']} {text}")


def trigger(args: argparse.Namespace) -> int:
    api = connect(args)
    job = api.change_template("schedules", templates.chosen(args, api), "trigger")
    if args.json:
        return print_json(job)
    print(job["id"])
    terminal.print_message(f"{terminal.sanitize(job['url'])}\n  follow it  gradient-cli jobs logs {job['id']} --follow")
    return OK


def _row(schedule: dict[str, Any]) -> list[str]:
    return [
        schedule["id"],
        schedule["name"],
        f"{schedule['cron']} ({schedule['timezone']})",
        _next(_local_times(schedule)[:1], schedule),
        _last(schedule),
    ]


def _next(times: list[str], schedule: dict[str, Any]) -> str:
    return ", ".join(times) or ("suspended" if schedule["suspended"] else "unknown")


def _last(schedule: dict[str, Any]) -> str:
    """Describe the last job, or why the last time has none."""
    if schedule["refusal"]:
        return f"none {format_past(schedule['refusedAt'])}: {schedule['refusal']}"
    job = schedule["lastJob"]
    return f"{job['id']} {state_word(job['state'])} ({format_past(job['createdAt'])})" if job else "none yet"


def _local_times(schedule: dict[str, Any]) -> list[str]:
    zone = _zone(schedule["timezone"])
    return [f"{parse_time(text).astimezone(zone):%a %Y-%m-%d %H:%M %Z}" for text in schedule["nextTimes"]]


def _zone(name: str) -> tzinfo | None:
    """Return the time zone of a schedule; None, this machine's, if there are no time zones here or not this one."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        return None


add_list = partial(
    templates.add_list,
    noun="schedules",
    heads=("ID", "NAME", "TIMES", "NEXT", "LAST JOB"),
    row=_row,
    spare=("TIMES",),
)
add_show = partial(templates.add_command, noun="schedules", run=show)
add_trigger = partial(templates.add_command, noun="schedules", run=trigger)
add_delete = partial(templates.add_command, noun="schedules", run=templates.delete, needed=True)
add_suspend = partial(templates.add_command, noun="schedules", run=change, action="suspend")
add_resume = partial(templates.add_command, noun="schedules", run=change, action="resume")
