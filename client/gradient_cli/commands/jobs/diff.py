from __future__ import annotations

import argparse
from typing import Any

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.arguments import connect, resolve_job_id
from gradient_cli.errors import OK, UsageError
from gradient_cli.formatting import format_count, format_size, print_json, print_table
from gradient_cli.options import add_common, add_positional


def add_diff(parser: argparse.ArgumentParser) -> None:
    for name in ("first", "second"):
        text = f"id of the {name} job, its beginning, or @last"
        add_positional(parser, name, nargs="?", metavar=name.upper(), help=text)
    parser.epilog = "A single job (default: the last one) is compared with the job it was cloned from."
    parser.add_argument("--patch", action="store_true", help="also print the changes in text files")
    add_common(parser, diff)


def diff(args: argparse.Namespace) -> int:
    api = connect(args)
    if args.second is None:
        args.first, args.second = _origin(api, resolve_job_id(args.first, api))
    first, second = (resolve_job_id(job_id, api) for job_id in (args.first, args.second))
    difference = api.job_diff(first, second)
    if args.json:
        return print_json(difference)
    differing = difference["differences"]
    if differing:
        rows = [[name, _format(values["first"]), _format(values["second"])] for name, values in differing.items()]
        print_table(("OPTION", str(difference["first"]), str(difference["second"])), rows)
    else:
        terminal.print_message("no option differs")
    if difference["hidden"]:
        terminal.print_message(
            f"hidden by the server, may differ: {terminal.sanitize(', '.join(difference['hidden']))}"
        )
    if difference["workspace"]:
        _print_files(difference["workspace"], patch=args.patch)
    return OK


def _origin(api: Api, job_id: str) -> tuple[str, str]:
    """Return the job that a job was cloned from, and the job."""
    parent = api.job(job_id).get("parentJobId")
    if not parent:
        raise UsageError(
            f"{job_id} is not a clone, so there is no job to compare it with",
            hint="Name two: gradient-cli jobs diff FIRST SECOND.",
        )
    return str(parent), job_id


def _print_files(difference: dict[str, Any], *, patch: bool) -> None:
    if difference["leftOut"]:
        terminal.print_message(terminal.sanitize(difference["leftOut"]))
        return
    rows = [["added", file["path"], format_size(file["size"])] for file in difference["added"]]
    rows += [["removed", file["path"], format_size(file["size"])] for file in difference["removed"]]
    rows += [["changed", file["path"], format_size(file["secondSize"])] for file in difference["changed"]]
    if rows:
        print()
        print_table(("FILE", "PATH", "SIZE"), rows)
    total = difference["addedCount"] + difference["removedCount"] + difference["changedCount"]
    if total > len(rows):
        terminal.print_message(f"{format_count(total - len(rows), 'more file')} differ")
    for file in difference["changed"] if patch else ():
        if file["diff"]:
            print()
            for line in file["diff"].splitlines():
                print(terminal.sanitize_line(line, colours=False))
        if file["leftOut"]:
            terminal.print_message(terminal.sanitize(f"{file['path']}: {file['leftOut']}"))


def _format(value: object) -> str:
    if value is None or value == []:
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
