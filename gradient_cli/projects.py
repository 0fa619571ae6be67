"""`projects init`, `create` and `list`."""

from __future__ import annotations

import os

from gradient_cli import project_file, terminal
from gradient_cli.errors import OK, ClientError, UsageError
from gradient_cli.options import add_connection, add_json, add_option, add_positional
from gradient_cli.output import ago, print_json, print_table

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    import argparse

_PREFILLED = {"project": "NAME", "machineType": "NAME", "container": "IMAGE", "command": "TEXT", "workspace": "PATH"}


def add_init(parser: argparse.ArgumentParser) -> None:
    """Describe `projects init`."""
    for name, metavar in _PREFILLED.items():
        add_option(parser, f"--{name}", metavar=metavar, help=f"write this {name} into the file")
    add_json(parser)
    parser.set_defaults(run=init)


def add_create(parser: argparse.ArgumentParser) -> None:
    """Describe `projects create`."""
    add_positional(parser, "name", needed=True, metavar="NAME", nargs="?", help="the project's name")
    parser.add_argument("--name", dest="named", metavar="NAME", help="the same, as a flag")
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=create)


def add_list(parser: argparse.ArgumentParser) -> None:
    """Describe `projects list`."""
    add_json(parser)
    add_connection(parser)
    parser.set_defaults(run=list_projects)


def init(args: argparse.Namespace) -> int:
    """Write a project file into this folder, never over one."""
    path = os.path.join(os.getcwd(), project_file.NAME)
    values = {name: getattr(args, name) for name in _PREFILLED if getattr(args, name)}
    values.setdefault("project", os.path.basename(os.getcwd()) or "default")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(project_file.template(values))
    except FileExistsError:
        raise ClientError(f"{path} is there already", hint="Edit it, or remove it first.") from None
    if args.json:
        print_json({"path": path})
    else:
        terminal.note(f"wrote {path}: fill it in, then `gradient-cli jobs create` needs no flags here")
    return OK


def create(args: argparse.Namespace) -> int:
    """Make a project, or find the one of that name."""
    from gradient_cli.api import connect

    name = args.name or args.named
    if not name:
        raise UsageError("name: a project needs one", hint="For example: gradient-cli projects create vision")
    project = connect(args).create_project(name)
    if args.json:
        print_json(project)
    else:
        print(project["id"])
    return OK


def list_projects(args: argparse.Namespace) -> int:
    """Print the projects."""
    from gradient_cli.api import connect

    found = connect(args).projects()
    if args.json:
        print_json(found)
    elif not found["projects"]:
        terminal.note("no projects yet; `gradient-cli projects create NAME` makes one")
    else:
        rows = [
            [project["id"], project["name"], str(project.get("jobCount", "")), ago(project.get("createdAt"))]
            for project in found["projects"]
        ]
        print_table(("ID", "NAME", "JOBS", "CREATED"), rows)
    return OK
