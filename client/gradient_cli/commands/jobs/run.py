"""`jobs run`: submit a script with its arguments, and follow it."""

from __future__ import annotations

import argparse
import os
import shlex

from gradient_cli import terminal
from gradient_cli.commands.jobs import create
from gradient_cli.errors import UsageError
from gradient_cli.workspace import job_spec as specs

_PROGRAMS = {".py": "python", ".sh": "bash"}
_OF_MOST_PROGRAMS = {"-h", "--help"}


def add_run(parser: argparse.ArgumentParser) -> None:
    """Set up the parser of `jobs run`."""
    create.add_create(parser)
    specs.describe(parser, "command", "TEXT", argparse.SUPPRESS)  # `run` makes the command
    parser.add_argument("file", metavar="FILE", help="script to run: .py with python, .sh with bash")
    arguments = parser.add_argument(
        "arguments", metavar="ARGUMENT", nargs=argparse.REMAINDER, help="everything after FILE, for the script"
    )
    arguments.required = False  # argparse demands at least one otherwise
    parser.usage = f"{parser.usage} FILE [ARGUMENT...]"
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Submit a script of the workspace."""
    if args.command is not None:
        raise UsageError("command: `jobs run` makes it from FILE", hint="Use `gradient-cli jobs create --command`.")
    program = _PROGRAMS.get(os.path.splitext(args.file)[1])
    if program is None:
        raise UsageError(
            f"{args.file}: only .py and .sh files are run",
            hint="Use `gradient-cli jobs create -- PROGRAM ARGUMENT...` for other programs.",
        )
    args.command = shlex.join([program, _path_in(specs.resolve_workspace(args), args.file), *args.arguments])
    _report_own_options(args)
    return create.create(args)


def _report_own_options(args: argparse.Namespace) -> None:
    """Tell which arguments of the script are options of this command, which end at FILE."""
    known = args.menu._option_string_actions  # noqa: SLF001  argparse offers no public list
    flags = [word.partition("=")[0] for word in args.arguments if word.startswith("-")]
    own = list(dict.fromkeys(flag for flag in flags if flag in known and flag not in _OF_MOST_PROGRAMS))
    if own:
        terminal.print_message(
            f"note: {', '.join(own)} after {args.file} {'is an argument' if len(own) == 1 else 'are arguments'} of the "
            "script; options of `jobs run` come before it"
        )


def _path_in(workspace: str, file: str) -> str:
    """Return the path of a local file in the workspace; of a file in an archive or a repository, as it was given."""
    if not os.path.isdir(workspace):
        return file
    if not os.path.isfile(file):
        raise UsageError(f"{file}: no such file", hint="Give the path of a script, from the current folder.")
    path = os.path.relpath(os.path.realpath(file), os.path.realpath(workspace))
    if path.split(os.sep)[0] == os.pardir:
        raise UsageError(
            f"{file}: not in the workspace {workspace}", hint="Change to its folder, or give --workspace PATH."
        )
    return path
