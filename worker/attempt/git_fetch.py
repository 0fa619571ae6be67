"""Fetches workspaces from git, in the isolation of jobs.

The job decides what is fetched, and from where: git reaches what the job reaches. Its login is on its standard input,
and only its own server is told.
"""

import errno
import os
import re
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from core.jobs.spec.job_spec import split_login
from core.settings import Settings
from core.storage.workspaces.limits import WorkspaceLimits
from core.system.untrusted_folders import NOT_A_FOLDER, opened_folder, walk
from worker.backends.base import WORKSPACE, LaunchError
from worker.backends.network_limits import allowed_servers_here
from worker.backends.process.isolated_programs import Check, Isolation, Limits, OutOfMemory, Program, TooLong

MAX_FILES = WorkspaceLimits.max_files  # as for uploads; includes git's own files
_MEASURE_SHARE = 20
"""The folder is measured again after this multiple of the time that measuring took: a large one less often."""
_MAX_PATH_BYTES = 4095  # PATH_MAX, without its end
_MAX_NAMED = 5
_FETCH_SECONDS = 900.0  # for the largest workspace (10 GiB) at 12 MB/s
_SILENT_SECONDS = 60
# Reads the commit before the checkout creates files that the repository chooses. What follows the mark is its result.
_SCRIPT = """set -e
ulimit -d 4194304
IFS= read -r LOGIN_USER || true
IFS= read -r LOGIN_PASSWORD || true
export LOGIN_USER LOGIN_PASSWORD
git init --quiet --template=
git remote add origin "$1"
git fetch --quiet --depth 1 -- origin "$2"
commit=$(git rev-parse 'FETCH_HEAD^{commit}')
git checkout --quiet --detach "$commit"
git submodule --quiet update --init --recursive --depth 1 || true
if git lfs version >/dev/null 2>&1; then git lfs pull || true; fi
echo; echo "$3"; echo "$commit"
git submodule status --recursive 2>/dev/null | sed -n 's/^-[0-9a-f]* /submodule /p' || true
find . -path ./.git -prune -o -type f -size -2k ! -path '*[[:cntrl:]]*' \\
    -exec grep -l '^version https://git-lfs' {} + | sed 's|^./|lfs |' || true
"""
_HELPER = '!f() { printf \'username=%s\\npassword=%s\\n\' "$LOGIN_USER" "$LOGIN_PASSWORD"; }; f'
_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.fsmonitor": "false",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "protocol.http.allow": "always",
    "protocol.https.allow": "always",
    "http.lowSpeedLimit": "1",
}
_ENV = {
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
}
_COMMIT = re.compile(r"[0-9a-f]{40,64}\Z")
_ERROR_MESSAGES = (
    (r"couldn't find remote ref", "the repository does not have this branch, tag or commit"),
    (
        r"could not read Username|Authentication failed|returned error: 40[13]",
        "the server rejected the user or password",
    ),
    (r"returned error: 404|repository '[^']*' not found", "the server does not have this repository"),
    (r"certificate", "the server's certificate cannot be trusted"),
    (r"returned error: ([1-5]\d\d)\b", r"the server answered \1"),
    (r"Operation too slow", "the server did not respond in time"),
    (r"Could not resolve host", "its host name cannot be resolved"),
    (r"Failed to connect|Couldn't connect", "nothing listens at its address"),
    (
        r"not valid: |invalid server response|protocol error|expected flush",
        "the server did not respond as a git server",
    ),
    (r"No space left on device|Disk quota exceeded", "the disk is full"),
    (r"[Oo]ut of memory", "git ran out of memory"),
    (r"git: not found", "git is not installed on the worker's machine"),
)
"""Patterns in git's output, and our message for each.

Git's own text may repeat the server's answer, which is untrusted.
"""


class Fetched(NamedTuple):
    """A fetched commit, and what users should know about it."""

    commit: str
    notes: list[str]


class GitFetcher:
    def __init__(
        self,
        settings: Settings,
        shared: Callable[[], bool] = lambda: False,
        *,
        seconds: float = _FETCH_SECONDS,
        silent_seconds: int = _SILENT_SECONDS,
    ) -> None:
        self._settings = settings
        self._seconds, self._silent_seconds = seconds, silent_seconds
        self._shared = shared

    @cached_property
    def _isolation(self) -> Isolation:
        return Isolation(self._settings, self._shared)

    def fetch(
        self, url: str, login: str | None, folder: Path, check: Check, project_id: str, limits: Limits | None = None
    ) -> Fetched:
        """Fetch the branch, tag or commit after `#`, or the default branch, into an empty folder.

        Args:
            url: `https://host/repo.git#ref`.
            login: `user:password`, as in a URL, or None; kept out of command lines and files.
            check: Called periodically; an exception it raises ends the fetch.
            limits: What git may take; None: what it needs.
        """
        address, _, ref = url.removeprefix("git+").partition("#")
        if ref.startswith("-"):
            raise LaunchError("workspace_fetch", f"{ref!r} is not the name of a branch, tag or commit")
        address, inside = split_login(address)  # older jobs have the login in the URL
        mark = secrets.token_hex()
        program = self._program(address, ref or "HEAD", login or inside, mark, folder, project_id)
        program = replace(program, limits=limits)
        self._isolation.own(project_id, folder)
        try:
            code, output = self._isolation.run(program, _SizeCheck(folder, self._settings, check))
            _SizeCheck(folder, self._settings, check).measure()
        except (OutOfMemory, TooLong, _TooLarge) as error:
            raise LaunchError("workspace_fetch", f"{address}: {error}") from error
        printed, _, result = output.partition(f"{mark}\n")
        commit, *lines = result.splitlines() or [""]
        if code or not _COMMIT.match(commit):
            failure = self._isolation.explain(_describe_failure(printed, code))
            raise LaunchError("workspace_fetch", f"{address}: {failure}")
        return Fetched(commit, _notes(lines))

    def _program(self, address: str, ref: str, login: str | None, mark: str, folder: Path, project_id: str) -> Program:
        origin = urlsplit(address)
        config = _CONFIG | {"http.lowSpeedTime": str(self._silent_seconds)}
        if login is not None:
            config[f"credential.{origin.scheme}://{origin.netloc}.helper"] = _HELPER
        user, _, password = (login or "").partition(":")
        return Program(
            words=["/bin/sh", "-c", _SCRIPT, "fetch", address, ref, mark],
            folder=folder,
            folders=[(folder, WORKSPACE)],
            beside=folder.with_name("fetching"),
            project_id=project_id,
            env=_environment(config),
            given=f"{unquote(user)}\n{unquote(password)}\n".encode(),
            seconds=self._seconds,
            reaches=allowed_servers_here(self._settings, origin),
        )


def _environment(config: dict[str, str]) -> dict[str, str]:
    env = _ENV | {"GIT_CONFIG_COUNT": str(len(config))}
    for number, (key, value) in enumerate(config.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


def _notes(lines: list[str]) -> list[str]:
    """Say what of a repository is missing."""
    submodules = [line.removeprefix("submodule ") for line in lines if line.startswith("submodule ")]
    pointers = [line.removeprefix("lfs ") for line in lines if line.startswith("lfs ")]
    notes = []
    if submodules:
        notes.append(
            f"Submodules of the repository could not be fetched, and their folders are empty: {_name(submodules)}."
        )
    if pointers:
        notes.append(
            f"Files of the repository are in Git LFS, and only their pointers were fetched: {_name(pointers)}. "
            "Their contents are fetched if git-lfs is installed on the worker's machine and the LFS server allows "
            "it."
        )
    return notes


def _name(paths: list[str]) -> str:
    more = f" and {len(paths) - _MAX_NAMED} more" if len(paths) > _MAX_NAMED else ""
    return ", ".join(path[:200] for path in paths[:_MAX_NAMED]) + more


def _describe_failure(output: str, code: int) -> str:
    # The server's lines begin with `remote:`. Other text of the server may follow on a line of git's own.
    output = "\n".join(line for line in output.split("\n") if line.startswith(("fatal:", "error:", "fetch:")))
    for pattern, meaning in _ERROR_MESSAGES:
        match = re.search(pattern, output)
        if match:
            return match.expand(meaning)
    return f"git could not fetch it and ended with exit code {code}"


class _TooLarge(Exception):
    """The repository is larger than a workspace may be."""


class _SizeCheck:
    """Checks the size of a folder from time to time, while it is written."""

    def __init__(self, folder: Path, settings: Settings, check: Callable[[], None]) -> None:
        self._folder, self._check, self._max_bytes = folder, check, settings.api.max_upload_bytes
        self._measure_at = 0.0

    def __call__(self) -> None:
        self._check()
        if (began := time.monotonic()) >= self._measure_at:
            self.measure()
            self._measure_at = time.monotonic() + max(0.5, _MEASURE_SHARE * (time.monotonic() - began))

    def measure(self) -> None:
        size = count = 0
        try:
            with opened_folder(self._folder) as top:
                for entry in walk(top):
                    count += 1  # an empty file takes no bytes, but an inode
                    size += entry.status.st_blocks * 512
                    if len(os.fsencode(f"{self._folder}/{entry.path}")) > _MAX_PATH_BYTES:
                        raise _TooLarge("a path in it is longer than this system allows")
                    if count > MAX_FILES:
                        raise _TooLarge(f"it is more than {MAX_FILES:,} files and folders, which is the limit")
        except OSError as error:
            if error.errno == errno.ENAMETOOLONG:
                raise _TooLarge(str(error.strerror)) from None
            if error.errno not in NOT_A_FOLDER:
                raise
        if size > self._max_bytes:
            raise _TooLarge(
                f"it takes more than {self._max_bytes:,} bytes of disk space, which is the limit "
                f"(GRADIENT_API__MAX_UPLOAD_BYTES={self._max_bytes})"
            )
