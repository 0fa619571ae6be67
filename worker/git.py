"""Fetching one commit of a git repository as a job's workspace."""

import base64
import os
import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from core.jobs.spec import HIDDEN
from worker.backends.base import BackendError

TIMEOUT_SECONDS = 900
_CHECK_SECONDS = 0.5
_SHOWN = 500
_USER_INFO = re.compile(r"://[^/\s]*@")


def fetch(url: str, folder: Path, check: Callable[[], None]) -> str:
    """Fetch the branch, tag or commit behind `#`, else the default branch, into an empty folder.

    Args:
        url: `https://host/repo.git#ref`; a user and password in it are kept out of command lines and files.
        folder: Where it goes.
        check: Called now and then; what it raises ends the fetch.

    Returns:
        The commit.

    Raises:
        BackendError: It cannot be fetched.
    """
    address, _, ref = url.removeprefix("git+").partition("#")
    if ref.startswith("-"):
        raise BackendError("workspace_fetch", f"{ref!r} is not the name of a branch, tag or commit")
    address, header = _without_password(address)
    env = _environment(folder, header)
    _run(folder, env, check, "init", "--quiet")
    _run(folder, env, check, "fetch", "--quiet", "--depth", "1", "--", address, ref or "HEAD")
    _run(folder, env, check, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    return _run(folder, env, check, "rev-parse", "HEAD").strip()


def _without_password(address: str) -> tuple[str, str | None]:
    """The address as it may stand in a process list, and the header that carries what was taken out of it."""
    parts = urlsplit(address)
    info, at, host = parts.netloc.rpartition("@")
    if not at or parts.scheme not in {"http", "https"}:
        return address, None
    user, _, password = info.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return urlunsplit(parts._replace(netloc=host)), f"Authorization: Basic {base64.b64encode(pair).decode()}"


def _environment(folder: Path, header: str | None) -> dict[str, str]:
    # Only networks are fetched from, no prompt waits for an answer, and no configuration of ours takes part.
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https:http:ssh:git",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C",
    }
    if header is not None:
        env |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http.extraHeader", "GIT_CONFIG_VALUE_0": header}
    return env


def _run(folder: Path, env: dict[str, str], check: Callable[[], None], *arguments: str) -> str:
    try:
        git = subprocess.Popen(  # noqa: S603 - arguments are checked by JobSpec and above
            ["git", *arguments],  # noqa: S607 - the host's git, by PATH
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
    except FileNotFoundError as error:
        raise BackendError("workspace_fetch", "git is not installed on the worker's machine") from error
    with git:
        try:
            out, said = _wait(git, check)
        except BaseException:
            git.kill()
            raise
    if git.returncode:
        # git repeats addresses in quotes, and a token that stands for the user's name is a secret too.
        shown = " ".join(_USER_INFO.sub(f"://{HIDDEN}@", said).split())
        raise BackendError("workspace_fetch", shown[-_SHOWN:] or f"git ended with {git.returncode}")
    return out


def _wait(git: subprocess.Popen[str], check: Callable[[], None]) -> tuple[str, str]:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while True:
        check()
        try:
            return git.communicate(timeout=_CHECK_SECONDS)
        except subprocess.TimeoutExpired as error:
            if time.monotonic() > deadline:
                raise BackendError("workspace_fetch", f"no answer within {TIMEOUT_SECONDS} seconds") from error
