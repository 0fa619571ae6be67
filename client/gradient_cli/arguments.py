"""The server, jobs and times that arguments name."""

from __future__ import annotations

import argparse
import os
import re
import sys
from datetime import datetime, timedelta, timezone

from gradient_cli import config, terminal
from gradient_cli.api.client import Api
from gradient_cli.api.transport import Transport
from gradient_cli.errors import REFUSED, ClientError, UsageError
from gradient_cli.formatting import parse_duration, parse_time
from gradient_cli.options import LAST
from gradient_cli.workspace import project_file

_IN_ARRAY = re.compile("[as][a-z0-9]{13}(_[0-9]{1,9})?")  # the id of an array or a sweep, or of one of its members
_ID_PREFIX = re.compile(r"j[a-z0-9]{0,12}")  # a whole id has 13 characters after its j
_CANDIDATES = 5


def connect(args: argparse.Namespace) -> Api:
    """Return the API of the server that flags, environment or files name. Sends nothing yet."""
    settings = config.resolve(getattr(args, "url", None), getattr(args, "apiKey", None))
    return Api(Transport(settings.url, settings.key, settings.source))


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
            f"{name}: {text!r} is not a time",
            hint="Write an age such as 10m, 2h or 1d, or a time such as 2026-01-31T09:00.",
        ) from None


def current_folder() -> str:
    """Return the folder that the last job is stored under: that of the project file, else the current one."""
    path = project_file.find()
    return os.path.dirname(path) if path else os.path.realpath(os.getcwd())


def resolve_job_id(given: str | None, api: Api) -> str:
    """Return the whole id of the given job, else that of this folder's last job, which is printed to stderr.

    `ID_INDEX` is a member of an array.
    """
    job_id = resolve_id(given, api)
    if is_array_id(job_id):
        raise UsageError(
            f"{job_id} is an array, but a single job is required",
            hint=f"Name one of its members, for example {job_id}_0.",
        )
    return job_id


def resolve_id(given: str | None, api: Api) -> str:
    """Return the id of a job, as `resolve_job_id` does, or of an array."""
    if given and _IN_ARRAY.fullmatch(given) and not is_array_id(given):
        jobs = api.jobs({"array": given})["jobs"]
        if not jobs:
            raise ClientError(
                f"there is no member {given}", hint="`gradient-cli jobs list` lists arrays.", code=REFUSED
            )
        return str(jobs[0]["id"])
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
    remembered = config.last(noun, current_folder(), api.url)
    if not remembered:
        raise UsageError(
            f"id: required, because no {noun[:-1]} has been created in this folder yet",
            hint=f"`gradient-cli {group or noun} list` lists the ids.",
        )
    text = f"{noun[:-1]} {remembered} (the last one from this folder)"
    terminal.print_message(terminal.style(text, "dim", sys.stderr))
    return remembered


def _complete_id(beginning: str, api: Api) -> str:
    """Return the id of the one job whose id begins like this."""
    jobs = api.jobs({"idPrefix": beginning, "limit": _CANDIDATES + 1})["jobs"]
    if len(jobs) == 1:
        return str(jobs[0]["id"])
    if not jobs:
        raise ClientError(
            f"no job has an id that begins with {beginning!r}",
            hint="`gradient-cli jobs list` lists the ids.",
            code=REFUSED,
        )
    named = ", ".join(f"{job['id']} ({job.get('name') or ''})" for job in jobs[:_CANDIDATES])
    more = ", …" if len(jobs) > _CANDIDATES else ""
    raise UsageError(
        f"several jobs have an id that begins with {beginning!r}: {named}{more}", hint="Give more characters."
    )
