"""Options shared by several commands."""

from __future__ import annotations

import argparse
import os
import re
import sys

from gradient_cli import terminal
from gradient_cli.errors import UsageError

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from typing import Any, NoReturn

SERVER_HELP = "address of the server (default: GRADIENT_URL, else saved by `login`, else this machine)"
KEY_HELP = "API key (default: GRADIENT_API_KEY, else saved by `login`, else the key of this machine)"

_JOB_ID = re.compile(r"j[a-z0-9]{13}")


class Parser(argparse.ArgumentParser):
    """An argument parser with the same help on every Python version, and errors with a hint."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  passed through to argparse untouched
        settings.setdefault("formatter_class", _formatter)
        super().__init__(allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of exiting."""
        raise UsageError(message, hint=f"`{self.prog} --help` lists the options.")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Breaks lines only between words, so that commands and options can be copied."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        import textwrap

        return textwrap.wrap(text, width, break_on_hyphens=False)


def _formatter(prog: str) -> argparse.HelpFormatter:
    # With an explicit width, argparse need not import shutil, the slowest part of showing help.
    return _HelpFormatter(prog, width=min(terminal.width(), 110) - 2, max_help_position=30)


def add_option(parser: argparse.ArgumentParser, flag: str, **settings: Any) -> None:  # noqa: ANN401  passed through to argparse untouched
    """Add a flag in the original service's camel case, and a hidden kebab-case alias."""
    parser.add_argument(flag, dest=flag[2:], **settings)
    kebab = re.sub("([A-Z])", r"-\1", flag).lower()
    if kebab != flag:
        hidden = {**settings, "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
        parser.add_argument(kebab, dest=flag[2:], **hidden)


def add_connection(parser: argparse.ArgumentParser, *, url: str = SERVER_HELP, key: str = KEY_HELP) -> None:
    """Add `--url` and `--apiKey`. They have no default, so that a value given before the command is kept."""
    group = parser.add_argument_group("server")
    add_option(group, "--url", metavar="URL", default=argparse.SUPPRESS, help=url)  # type: ignore[arg-type]
    add_option(group, "--apiKey", metavar="KEY", default=argparse.SUPPRESS, help=key)  # type: ignore[arg-type]


def add_positional(parser: argparse.ArgumentParser, name: str, *, needed: bool = False, **settings: Any) -> None:  # noqa: ANN401  passed through to argparse untouched
    """Add a positional argument, and name it in the command's usage line."""
    parser.add_argument(name, **settings)
    word = settings["metavar"] + ("..." if settings.get("nargs") == "*" else "")
    parser.usage = f"{parser.usage} {word if needed else f'[{word}]'}"


def add_json(parser: argparse.ArgumentParser, text: str = "print one JSON object and nothing else") -> None:
    """Add `--json`."""
    parser.add_argument("--json", action="store_true", help=text)


def add_job_id(parser: argparse.ArgumentParser) -> None:
    """Add the optional id of a job."""
    add_positional(parser, "id", nargs="?", metavar="ID", help="id of the job (default: the last job of this folder)")


def is_job_id(text: str) -> bool:
    """Return whether the text has the form of a job id, and so is not a path pattern."""
    return _JOB_ID.fullmatch(text) is not None


def current_folder() -> str:
    """Return the folder that the last job is stored under: that of the project file, else the current one."""
    from gradient_cli.workspace import project_file

    found = project_file.find()
    return os.path.dirname(found) if found else os.path.realpath(os.getcwd())


def resolve_job_id(given: str | None, url: str) -> str:
    """Return the given id, else that of this folder's last job, which is printed to stderr.

    Raises:
        UsageError: No id was given, and none is stored.
    """
    if given:
        return given
    from gradient_cli import config

    remembered = config.last_job(current_folder(), url)
    if not remembered:
        raise UsageError(
            "id: required, because no job was submitted from this folder yet",
            hint="`gradient-cli jobs list` lists the ids.",
        )
    terminal.print_message(terminal.style(f"job {remembered} (the last one of this folder)", "dim", sys.stderr))
    return remembered
