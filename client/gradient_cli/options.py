from __future__ import annotations

import argparse
import os
import re
import sys

from gradient_cli import TYPE_CHECKING, terminal
from gradient_cli.errors import REFUSED, ClientError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime
    from typing import Any, NoReturn

    from gradient_cli.api.client import Api

SERVER_HELP = "address of the server (default: GRADIENT_URL, else saved by `login`, else this machine)"
KEY_HELP = "API key (default: GRADIENT_API_KEY, else saved by `login`, else the key of this machine)"

LAST = "@last"  # the id to give for the last job of the current folder
_ID_HELP = f"id of the job, or its beginning (default: {LAST}, the last job of this folder)"
_IN_ARRAY = re.compile("[as][a-z0-9]{13}(_[0-9]{1,9})?")  # the id of an array or a sweep, or of one of its members
_ID_PREFIX = re.compile(r"j[a-z0-9]{0,12}")  # a whole id has 13 characters after its j
_CANDIDATES = 5

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
        import textwrap

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
    """Add the last flags of a command that asks the server, `--json` with this help, and the function that runs it."""
    add_json(parser, json)
    add_connection(parser)
    parser.set_defaults(run=run, **defaults)


def connect(args: argparse.Namespace) -> Api:
    """Return the API of the server that flags, environment or files name. Sends nothing yet."""
    from gradient_cli import config
    from gradient_cli.api.client import Api
    from gradient_cli.api.transport import Transport

    settings = config.resolve(getattr(args, "url", None), getattr(args, "apiKey", None))
    return Api(Transport(settings.url, settings.key, settings.source))


def add_job_id(parser: argparse.ArgumentParser) -> None:
    add_positional(parser, "id", nargs="?", metavar="ID", help=_ID_HELP)


def add_job_ids(parser: argparse.ArgumentParser) -> None:
    add_positional(
        parser, "ids", nargs="*", metavar="ID", help=f"ids, or their beginnings (default: {LAST}, the last job here)"
    )


def is_job_id(text: str) -> bool:
    """Return whether the text names a job: the last one, an id, or its beginning, even if there is no such job."""
    of_job = text.startswith("j") and text.isascii() and text.isalnum() and text == text.lower()
    return text == LAST or of_job or bool(_IN_ARRAY.fullmatch(text))


def is_array_id(text: str) -> bool:
    return "_" not in text and bool(_IN_ARRAY.fullmatch(text))


def parse_moment(name: str, text: str, api: Api) -> datetime:
    """Parse a time: a duration before now, such as `10m`, or a date and time in ISO 8601, without a zone in UTC.

    Now is what the server's clock shows, which made the times that it is compared with.
    """
    from datetime import timedelta, timezone

    from gradient_cli.formatting import parse_time
    from gradient_cli.workspace.job_spec import parse_duration

    try:
        age = timedelta(seconds=parse_duration(name, text))
        return api.now() - age
    except (UsageError, OverflowError):
        pass
    try:
        moment = parse_time(text)
        return moment.replace(tzinfo=timezone.utc) if moment.tzinfo is None else moment.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise UsageError(
            f"{name}: {text!r} is not a time", hint="Write 10m, 2h or 1d for a time ago, or 2026-01-31T09:00."
        ) from None


def current_folder() -> str:
    """Return the folder that the last job is stored under: that of the project file, else the current one."""
    from gradient_cli.workspace import project_file

    found = project_file.find()
    return os.path.dirname(found) if found else os.path.realpath(os.getcwd())


def resolve_job_id(given: str | None, api: Api) -> str:
    """Return the whole id of the given job, else that of this folder's last job, which is printed to stderr.

    `ID_INDEX` is a member of an array.
    """
    job_id = resolve_id(given, api)
    if is_array_id(job_id):
        raise UsageError(
            f"{job_id} is an array, and one job is needed", hint=f"Name one of its members, for example {job_id}_0."
        )
    return job_id


def resolve_id(given: str | None, api: Api) -> str:
    """Return the id of a job, as `resolve_job_id` does, or of an array."""
    if given and _IN_ARRAY.fullmatch(given) and not is_array_id(given):
        found = api.jobs({"array": given})["jobs"]
        if not found:
            raise ClientError(
                f"there is no member {given}", hint="`gradient-cli jobs list` lists arrays.", code=REFUSED
            )
        return str(found[0]["id"])
    if given and given != LAST:
        return _complete_id(given, api) if _ID_PREFIX.fullmatch(given) else given
    return last_id("jobs", api)


def last_id(noun: str, api: Api, group: str = "") -> str:
    """Return the id of the last one that was made in this folder.

    Args:
        noun: What: jobs, sweeps, …
        api: The server.
        group: The commands about them, if these are called otherwise.
    """
    from gradient_cli import config

    remembered = config.last(noun, current_folder(), api.url)
    if not remembered:
        raise UsageError(
            f"id: required, because no {noun[:-1]} was made in this folder yet",
            hint=f"`gradient-cli {group or noun} list` lists the ids.",
        )
    text = f"{noun[:-1]} {remembered} (the last one of this folder)"
    terminal.print_message(terminal.style(text, "dim", sys.stderr))
    return remembered


def _complete_id(beginning: str, api: Api) -> str:
    """Return the id of the one job whose id begins like this."""
    found = api.jobs({"idPrefix": beginning, "limit": _CANDIDATES + 1})["jobs"]
    if len(found) == 1:
        return str(found[0]["id"])
    if not found:
        raise ClientError(
            f"no job has an id that begins with {beginning!r}",
            hint="`gradient-cli jobs list` lists the ids.",
            code=REFUSED,
        )
    named = ", ".join(f"{job['id']} ({job.get('name') or ''})" for job in found[:_CANDIDATES])
    more = ", …" if len(found) > _CANDIDATES else ""
    raise UsageError(f"several jobs have an id that begins with {beginning!r}: {named}{more}", hint="Give more of it.")
