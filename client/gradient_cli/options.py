from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections.abc import Callable
from typing import Any, NoReturn

from gradient_cli import terminal
from gradient_cli.errors import UsageError

SERVER_HELP = "address of the server (default: GRADIENT_URL, then the address saved by `login`, then this machine)"
KEY_HELP = "API key (default: GRADIENT_API_KEY, then the key saved by `login`, then this machine's key)"

HIDDEN = argparse.SUPPRESS
LAST = "@last"  # the id to give for the last job of the current folder
_ID_HELP = f"id of the job, or its beginning (default: {LAST}, the last job from this folder)"
# Options of a job, by the headings of the help.
_OF_JOBS = {
    "job": "command name project projectId tag param array arrayReuse nodes after envVars envFile metricPatterns "
    "priority timeLimit maxCost maxGpuHours stopGrace stopSignal warnBefore onIdle onStall onDiverge onDisk "
    "keepOnFail maxAttempts",
    "machine": "machineType cpus memoryMb sharedMemMb capacity network ports dataDisks slurmOptions user waitAnyway",
    "files and packages": "workspace include inputs outputs workingDirectory requirements with extra group python",
    "container": "container imagePullPolicy useDockerfile relDockerfilePath buildOnly registryTarget ignoreEntrypoint "
    "registryUsername registryPassword",
}

# argparse would look on the disk for a translation of each of its words, and load `locale` to do so; there are none.
argparse._ = str  # type: ignore[attr-defined]  # argparse's own translations


class Parser(argparse.ArgumentParser):
    """An argument parser with the same help on every Python version, and errors with a hint."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  passed through to argparse untouched
        settings.setdefault("formatter_class", _formatter)
        super().__init__(allow_abbrev=False, **settings)

    def _print_message(self, message: str, file: Any = None) -> None:  # noqa: ANN401 - as argparse
        """Let a full disk be an error; argparse ignores it."""
        (file or sys.stderr).write(message)

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of exiting."""
        raise UsageError(message, hint=f"`{self.prog} --help` lists the options.")


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Breaks lines only between words, so that commands and options can be copied."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if not action.option_strings or action.nargs == 0:
            return super()._format_action_invocation(action)
        # Before Python 3.13 argparse repeats the placeholder after each form of an option.
        value = self._format_args(action, self._get_default_metavar_for_optional(action))
        return f"{', '.join(action.option_strings)} {value}"

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


def _formatter(prog: str) -> argparse.HelpFormatter:
    # With an explicit width, argparse need not import shutil, the slowest part of showing help.
    return _HelpFormatter(prog, width=min(terminal.width(), 110) - 2, max_help_position=30)


def add_option(parser: argparse.ArgumentParser, flag: str, short: str = "", **settings: Any) -> None:  # noqa: ANN401  passed through to argparse untouched
    """Add a flag in the original service's camel case, a short form if one is given, and a hidden kebab-case alias."""
    parser.add_argument(*filter(None, (short, flag)), dest=flag[2:], **settings)
    kebab = re.sub("([A-Z])", r"-\1", flag).lower()
    if kebab != flag:
        hidden = {**settings, "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
        parser.add_argument(kebab, dest=flag[2:], **hidden)


def group_options(parser: argparse.ArgumentParser, title: str, options: str) -> None:
    """Show the options of a job in the help below headings, and before them `options` below their title."""
    optionals = parser._optionals._group_actions  # noqa: SLF001 - argparse moves no option to a group
    for heading, names in {title: options, **_OF_JOBS}.items():
        chosen = [action for action in optionals if action.dest in names.split()]
        if chosen:
            parser.add_argument_group(heading)._group_actions += chosen  # noqa: SLF001 - argparse moves no option
            optionals[:] = [action for action in optionals if action not in chosen]


def add_connection(parser: argparse.ArgumentParser, *, url: str = SERVER_HELP, key: str = KEY_HELP) -> None:
    """Add `--url` and `--apiKey`. They have no default, so that a value given before the command is kept."""
    group = parser.add_argument_group("server")
    add_option(group, "--url", metavar="URL", default=argparse.SUPPRESS, help=url)  # type: ignore[arg-type]  # `default` is a marker
    add_option(group, "--apiKey", metavar="KEY", default=argparse.SUPPRESS, help=key)  # type: ignore[arg-type]  # `default` is a marker


def add_positional(parser: argparse.ArgumentParser, name: str, *, needed: bool = False, **settings: Any) -> None:  # noqa: ANN401  passed through to argparse untouched
    """Add a positional argument, and name it in the command's usage line."""
    parser.add_argument(name, **settings)
    word = settings["metavar"] + ("..." if settings.get("nargs") == "*" else "")
    parser.usage = f"{parser.usage} {word if needed else f'[{word}]'}"


def add_json(parser: argparse.ArgumentParser, text: str = "print one JSON object and nothing else") -> None:
    parser.add_argument("--json", action="store_true", help=text)


def add_common(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], int],
    json: str = "print one JSON object and nothing else",
    **defaults: object,
) -> None:
    """Add the last flags of a command that asks the server, `--json` if it has a help, and what runs it."""
    if json:
        add_json(parser, json)
    add_connection(parser)
    parser.set_defaults(run=run, **defaults)


def add_job_id(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "id", nargs="?", metavar="ID", help=_ID_HELP)


def add_for_job(parser: argparse.ArgumentParser, run: Callable[[argparse.Namespace], int], **options: str) -> None:
    """Add a command about one job that has no options of its own; see `add_common`."""
    add_job_id(parser)
    add_common(parser, run, **options)


def add_job_ids(parser: argparse.ArgumentParser) -> None:
    add_positional(
        parser,
        "ids",
        nargs="*",
        metavar="ID",
        help=f"ids, or their beginnings (default: {LAST}, the last job from this folder)",
    )
