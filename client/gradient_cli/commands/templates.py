"""The commands that schedules and sweeps share: both are made like a job, listed, changed and deleted."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from gradient_cli import config, terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect, current_folder, last_id
from gradient_cli.commands.jobs import create as jobs
from gradient_cli.errors import OK
from gradient_cli.formatting import print_json, print_list, print_result
from gradient_cli.options import LAST, add_common, add_option, add_positional
from gradient_cli.workspace import submission, workspace_path

Row = Callable[[dict[str, Any]], Sequence[str]]


_REFUSED = frozenset({"array", "arrayReuse", "nodes", "after", "registryUsername", "registryPassword"})


def hide_refused(parser: argparse.ArgumentParser) -> None:
    """Leave options of a job out of the help, which the server refuses for schedules and sweeps, with a reason."""
    for action in parser._actions:  # noqa: SLF001 - argparse has no other way to find an option
        if action.dest in _REFUSED:
            action.help = argparse.SUPPRESS


def add_list(
    parser: argparse.ArgumentParser, noun: str, heads: Sequence[str], row: Row, *, spare: Sequence[str]
) -> None:
    """Add a command that lists schedules or sweeps, `noun`, as a table of these columns."""
    add_option(parser, "--limit", metavar="N", type=int, default=20, help=f"number of {noun} to list (default: 20)")

    def show(args: argparse.Namespace) -> int:
        answer = connect(args).templates(noun, {"limit": args.limit})
        empty = f"no {noun}; see `gradient-cli {noun} create --help` to create one"
        return print_list(args, answer, heads, list(map(row, answer[noun])), empty, spare=spare)

    add_common(parser, show)


def add_command(
    parser: argparse.ArgumentParser,
    noun: str,
    run: Callable[[argparse.Namespace], int],
    *,
    needed: bool = False,  # the last one made in this folder does not stand for it
    **defaults: str,
) -> None:
    """Add a command about one schedule or sweep."""
    text = f"id of the {noun[:-1]}"
    if needed:
        add_positional(parser, "id", needed=True, metavar="ID", help=text)
    else:
        help_text = f"{text} (default: {LAST}, the last one created in this folder)"
        add_positional(parser, "id", nargs="?", metavar="ID", help=help_text)
    add_common(parser, run, noun=noun, **defaults)


def chosen(args: argparse.Namespace, api: Api) -> str:
    """Return the id of the schedule or sweep that a command is about."""
    return str(args.id) if args.id and args.id != LAST else last_id(args.noun, api)


def create(
    args: argparse.Namespace,
    noun: str,
    resolved: tuple[dict[str, Any], str, list[str]],  # the job, its workspace, and what of it is included
    fields: dict[str, Any],  # of the schedule or sweep
) -> dict[str, Any]:
    job, workspace, include = resolved
    api = connect(args)
    submission.choose_machine_type(api, job, terminal.print_message)
    spec, to = {**job, **fields}, f"/{noun}"
    if workspace == "none" or workspace_path.is_url(workspace):
        jobs.check_no_include(args)
        made = api.create({**spec, "workspace": workspace}, to=to)
    else:
        folder = jobs.read_folder(args, workspace, include, args.largeWorkspace)
        made = submission.submit(api, spec, workspace, folder, to=to, planned=job)
    with suppress(OSError):  # it only saves typing
        config.remember(noun, current_folder(), api.url, str(made["id"]))
    return made


def print_created(args: argparse.Namespace, made: dict[str, Any], text: str) -> int:
    """Print the id of what was created, and on stderr its address and a text."""
    if args.json:
        return print_json(made)
    print(made["id"])
    terminal.print_message(f"{terminal.sanitize(made['url'])}{text}")
    return OK


def delete(args: argparse.Namespace) -> int:
    connect(args).delete_template(args.noun, args.id)
    deleted = {"id": args.id, "deleted": True}
    return print_result(args, deleted, f"deleted {args.noun[:-1]} {terminal.sanitize(args.id)}; its jobs are kept")
