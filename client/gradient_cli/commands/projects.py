from __future__ import annotations

import argparse
import os
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect
from gradient_cli.errors import OK, REFUSED, ClientError, UsageError
from gradient_cli.formatting import (
    format_count,
    format_moment_and_age,
    format_money,
    format_past,
    print_fields,
    print_json,
    print_list,
    print_result,
)
from gradient_cli.options import add_common, add_json, add_option, add_positional
from gradient_cli.workspace import project_file

_PREFILLED = {"project": "NAME", "machineType": "NAME", "container": "IMAGE", "command": "TEXT", "workspace": "PATH"}
# By option: the words accepted besides a number, and the value sent for each.
_CHANGES: dict[str, dict[str, str | None]] = {
    "maxRunning": {"none": None},
    "keepLogsDays": {"forever": None, "default": "default"},
    "keepArtifactsDays": {"forever": None, "default": "default"},
}
_HELPS = {
    "maxRunning": ("N|none", "limit on jobs of this project running at once; none: no limit"),
    "keepLogsDays": ("N|forever|default", "days to keep logs after a job's end; default: the service's setting"),
    "keepArtifactsDays": (
        "N|forever|default",
        "days to keep artifacts after a job's end; default: the service's setting",
    ),
}


def add_init(parser: argparse.ArgumentParser) -> None:
    for name, metavar in _PREFILLED.items():
        add_option(parser, f"--{name}", metavar=metavar, help=f"set {name} in the file")
    add_json(parser)
    parser.set_defaults(run=init)


def add_create(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "name", needed=True, metavar="NAME", nargs="?", help="name of the project")
    parser.add_argument("--name", dest="named", metavar="NAME", help="name of the project, instead of the argument")
    add_common(parser, create)


def add_show(parser: argparse.ArgumentParser) -> None:
    _add_project(parser)
    add_common(parser, show)


def add_update(parser: argparse.ArgumentParser) -> None:
    _add_project(parser)
    for name, (metavar, text) in _HELPS.items():
        add_option(parser, f"--{name}", metavar=metavar, help=text)
    add_budgets(parser, "; none: no limit")
    seen = parser.add_mutually_exclusive_group()
    seen.add_argument("--closed", action="store_true", default=None, help="show it to its members alone")
    seen.add_argument("--open", dest="closed", action="store_false", help="let everybody read it and submit to it")
    add_common(parser, update)


def add_members(parser: argparse.ArgumentParser) -> None:
    _add_project(parser)
    roles = "viewer (reads), submitter (also submits) or maintainer (changes all); repeatable"
    member = "a user, by e-mail address, or an API key, by id,"
    parser.add_argument("--set", action="append", metavar="MEMBER=ROLE", help=f"give {member} a role: {roles}")
    parser.add_argument("--remove", action="append", metavar="MEMBER", help="take a member's role away; repeatable")
    add_common(parser, change_members)


def add_delete(parser: argparse.ArgumentParser) -> None:
    _add_project(parser)
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask; required without a terminal")
    add_common(parser, delete)


def add_budgets(parser: argparse.ArgumentParser, more: str = "") -> None:
    text = "most that its jobs may cost by day, month or in total: 100/month, 8gpu_hours/day; repeatable"
    parser.add_argument("--budget", dest="budgets", metavar="AMOUNT/PERIOD", action="append", help=text + more)


def describe_budgets(budgets: list[dict[str, Any]]) -> str:
    """Describe what is left of budgets: `$1.20 of $5.00 left today`."""
    return "; ".join(
        f"{format_amount(budget['left'], budget['unit'])} of {format_amount(budget['amount'], budget['unit'])} left "
        + {"day": "today", "month": "this month", "total": "in total"}[budget["period"]]
        for budget in budgets
    )


def format_amount(amount: float, unit: str) -> str:
    return format_money(amount) if unit == "usd" else f"{amount:,.4g} GPU hours"


def _add_project(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "project", needed=True, metavar="NAME_OR_ID", nargs="?", help="name or id of the project")


def init(args: argparse.Namespace) -> int:
    """Write a project file, and a .gradientignore if there is none, into this folder; never overwrite one."""
    path = os.path.join(os.getcwd(), project_file.FILE_NAME)
    values = {name: getattr(args, name) for name in _PREFILLED if getattr(args, name)}
    values.setdefault("project", os.path.basename(os.getcwd()) or "default")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(project_file.template(values))
    except FileExistsError:
        raise ClientError(f"{path} already exists", hint="Edit the file, or delete it first.") from None
    ignore_file = project_file.write_ignore_file(os.getcwd())
    if args.json:
        print_json({"path": path, "ignoreFile": ignore_file})
    else:
        if ignore_file:
            terminal.print_message(f"wrote {ignore_file}: lists files that are not uploaded")
        terminal.print_message(f"wrote {path}: edit it, then `gradient-cli jobs create` needs no flags in this folder")
        terminal.print_message(
            f"jobs of this folder now go to the project {values['project']!r}; without this file they go to 'default'"
        )
    return OK


def create(args: argparse.Namespace) -> int:
    name = args.name or args.named
    if not name:
        raise UsageError("name: required", hint="For example: gradient-cli projects create vision")
    project = connect(args).create_project(name)
    if args.json:
        print_json(project)
    else:
        print(project["id"])
    return OK


def list_projects(args: argparse.Namespace) -> int:
    answer = connect(args).projects()
    heads, rows = ("ID", "NAME", "JOBS", "RUNNING", "WAITING", "CREATED"), list(map(_row, answer["projects"]))
    return print_list(args, answer, heads, rows, "no projects yet; `gradient-cli projects create NAME` creates one")


def _row(project: dict[str, Any]) -> list[str]:
    counts = [str(project.get(name, "")) for name in ("jobCount", "queuedCount")]
    return [
        project["id"],
        project["name"],
        counts[0],
        _format_running(project),
        counts[1],
        format_past(project.get("createdAt")),
    ]


def _format_running(project: dict[str, Any]) -> str:
    """Format the number of running jobs with its limit: `2 of 4`."""
    most = project.get("maxRunning")
    return f"{project.get('runningCount', '')}{'' if most is None else f' of {most}'}"


def show(args: argparse.Namespace) -> int:
    _print_project(args, find_project(connect(args), args.project))
    return OK


def update(args: argparse.Namespace) -> int:
    given = {name: getattr(args, name) for name in _CHANGES if getattr(args, name) is not None}
    changes: dict[str, Any] = {name: _parse_value(name, text) for name, text in given.items()}
    if args.budgets:
        changes["budgets"] = [] if args.budgets == ["none"] else args.budgets
    if args.closed is not None:
        changes["closed"] = args.closed
    if not changes:
        raise UsageError("nothing to change", hint="For example --maxRunning 4, or --keepArtifactsDays 90.")
    api = connect(args)
    _print_project(args, api.update_project(find_project(api, args.project)["id"], changes))
    return OK


def change_members(args: argparse.Namespace) -> int:
    changes = [tuple(text.rpartition("=")[::2]) for text in args.set or ()]
    if any(not all(change) for change in changes):
        raise UsageError("--set: MEMBER=ROLE", hint="For example --set ann@example.org=submitter.")
    api = connect(args)
    project_id = find_project(api, args.project)["id"]
    for member, role in [*changes, *((member, "") for member in args.remove or ())]:
        api.set_member(project_id, member, role)
    answer = api.project_members(project_id)
    rows = [[member["name"], member["id"], member["role"]] for member in answer["members"]]
    return print_list(args, answer, ("MEMBER", "ID", "ROLE"), rows)


def delete(args: argparse.Namespace) -> int:
    """Delete a project with its jobs, after a question if it has any; the server refuses it while jobs wait or run."""
    api = connect(args)
    project = find_project(api, args.project)
    jobs = format_count(project.get("jobCount") or 0, "job")
    if project.get("jobCount") and not args.yes:
        terminal.confirm_deletion(f"project {project['name']} with {jobs}, their logs and artifacts")
    api.delete_project(project["id"])
    return print_result(
        args, {"id": project["id"], "deleted": True}, f"deleted {terminal.sanitize(project['name'])} with {jobs}"
    )


def _parse_value(name: str, text: str) -> int | str | None:
    values = _CHANGES[name]
    if text in values:
        return values[text]
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        others = " or ".join(values)
        raise UsageError(f"{name}: {text!r} is not a whole number from 1", hint=f"Give a whole number, or {others}.")
    return int(text)


def find_project(api: Api, given: str | None) -> dict[str, Any]:
    if not given:
        raise UsageError("project: required", hint="`gradient-cli projects list` lists them.")
    projects: list[dict[str, Any]] = api.projects()["projects"]
    for key in ("id", "name"):
        for project in projects:
            if project[key] == given:
                return project
    raise ClientError(
        f"no project has the name or id {given!r}",
        hint="`gradient-cli projects list` lists them; `gradient-cli projects create NAME` creates one.",
        code=REFUSED,
    )


def _print_project(args: argparse.Namespace, project: dict[str, Any]) -> None:
    if args.json:
        print_json(project)
        return
    most = project.get("maxRunning")
    print_fields(
        {
            "id": project["id"],
            "name": project["name"],
            "jobs": str(project.get("jobCount", "")),
            "running": str(project.get("runningCount", "")),
            "waiting": str(project.get("queuedCount", "")),
            "at once": "no limit for this project" if most is None else f"at most {most}",
            "budgets": describe_budgets(project.get("budgets") or []),
            "keeps logs": _describe_retention(project, "keepLogs"),
            "keeps artifacts": _describe_retention(project, "keepArtifacts"),
            "created": format_moment_and_age(project.get("createdAt")),
            "seen by": "its members" if project.get("closed") else "everybody",
        }
    )


def _describe_retention(project: dict[str, Any], name: str) -> str:
    days = project.get(f"{name}Days")
    length = "forever" if days is None else f"{format_count(days, 'day')} after a job's end"
    return length + (" (the service's setting)" if project.get(f"{name}By") == "service" else "")
