"""Fetching one commit of a git repository as a job's workspace."""

import base64
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

from core.jobs.spec import HIDDEN
from worker.backends.base import BackendError

TIMEOUT_SECONDS = 900
_CHECK_SECONDS = 0.5
_SHOWN = 500
_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.fsmonitor": "false",
    "credential.helper": "",
    "submodule.recurse": "false",
    "fetch.recurseSubmodules": "false",
    "http.followRedirects": "false",
}
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
    with tempfile.TemporaryDirectory(prefix="git-home-") as home:
        env = _environment(home, header)
        _run(folder, env, check, "init", "--quiet", "--template=")
        _run(folder, env, check, "fetch", "--quiet", "--depth", "1", "--", address, ref or "HEAD")
        commit = _run(folder, env, check, "rev-parse", "FETCH_HEAD^{commit}").strip()
        # Last: from here on the folder holds files of the repository's choice.
        _run(folder, env, check, "checkout", "--quiet", "--detach", commit)
    return commit


def _without_password(address: str) -> tuple[str, str | None]:
    """The address as it may stand in a process list, and the header that carries what was taken out of it."""
    parts = urlsplit(address)
    info, at, host = parts.netloc.rpartition("@")
    if not at or parts.scheme not in {"http", "https"}:
        return address, None
    user, _, password = info.partition(":")
    pair = f"{unquote(user)}:{unquote(password)}".encode()
    return urlunsplit(parts._replace(netloc=host)), f"Authorization: Basic {base64.b64encode(pair).decode()}"


def _environment(home: str, header: str | None) -> dict[str, str]:
    # Configuration can have git write files and run programs: none is read but these lines. HOME is empty for the same
    # reason; a folder that the repository fills would be its own configuration.
    config = _CONFIG if header is None else _CONFIG | {"http.extraHeader": header}
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": home,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_COUNT": str(len(config)),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https:http:ssh:git",
        "GIT_SSH_COMMAND": "ssh -F /dev/null -oBatchMode=yes -oIdentitiesOnly=yes -oIdentityFile=none",
        "LC_ALL": "C",
    }
    for number, (key, value) in enumerate(config.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
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
