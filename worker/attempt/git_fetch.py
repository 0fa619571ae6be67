"""Fetches one commit of a git repository as a job's workspace."""

import base64
import os
import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote

from core.errors import SpecInvalid
from core.formatting import MIB
from core.jobs.spec.job_spec import split_login
from core.settings import Settings
from core.storage.archives import ArchiveLimits
from core.system.egress import Egress, connect
from worker.backends.base import LaunchError
from worker.sandbox.program_sandbox import FolderFull, Limits, Sandbox, SandboxError
from worker.sandbox.tunnel import Tunnel

_MAX_FILES = ArchiveLimits.max_files
"""As for uploads; includes git's own files."""
# Reads the commit before the checkout creates files that the repository chooses.
_SCRIPT = """set -e
git init --quiet --template=
git fetch --quiet --depth 1 -- "$1" "$2"
commit=$(git rev-parse 'FETCH_HEAD^{commit}')
git checkout --quiet --detach "$commit"
echo "$commit"
"""
_CONFIG = {
    "core.hooksPath": os.devnull,
    "core.attributesFile": os.devnull,
    "core.fsmonitor": "false",
    "credential.helper": "",
    "fetch.recurseSubmodules": "false",
    "gc.auto": "0",
    "http.followRedirects": "false",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "protocol.http.allow": "always",
    "protocol.https.allow": "always",
    "submodule.recurse": "false",
}
_ENV = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
}
_COMMIT = re.compile(r"[0-9a-f]{40,64}\Z")
_ERROR_MESSAGES = (
    (r"couldn't find remote ref", "the repository has no such branch, tag or commit"),
    (
        r"could not read Username|Authentication failed|returned error: 40[13]",
        "the server wants another user or password",
    ),
    (r"returned error: 404|repository '[^']*' not found", "the server has no such repository"),
    (r"unable to update url base from redirection|returned error: 30\d", "the server sends on to another address"),
    (r"certificate", "the server's certificate cannot be trusted"),
    (r"returned error: ([1-5]\d\d)\b", r"the server answered \1"),
    (r"not valid: |invalid server response|protocol error|expected flush", "the server's answer is not git's"),
    (r"No space left on device|Disk quota exceeded", "the disk is full"),
    (r"File size limit exceeded|File too large", "a file of it is too large"),
    (r"[Oo]ut of memory", "git ran out of memory"),
    (r"git: not found", "git is not installed on the worker's machine"),
)
"""Patterns in git's output, and our message for each.

Git's own text may repeat the server's answer, which is untrusted.
"""


class GitFetcher:
    """Fetches workspaces within the limits of the settings."""

    def __init__(self, settings: Settings) -> None:
        worker = settings.worker
        self._egress = Egress(settings.egress)
        self._sandbox = Sandbox(worker.sandbox)
        self.sandbox_problem = None if worker.sandbox == "off" else self._sandbox.problem
        """Reason that git runs without the sandbox that the settings request; None otherwise."""
        self._idle_timeout_seconds = worker.fetch_silent_seconds
        memory = worker.fetch_memory_mb * MIB
        self._limits = Limits(worker.fetch_seconds, memory, settings.api.max_unpacked_bytes, _MAX_FILES)

    def fetch(self, url: str, login: str | None, folder: Path, check: Callable[[], None]) -> str:
        """Fetch the branch, tag or commit after `#`, or the default branch, into an empty folder.

        Args:
            url: `https://host/repo.git#ref`.
            login: `user:password`, as in a URL, or None; kept out of command lines and files.
            folder: The target.
            check: Called periodically; an exception it raises ends the fetch.

        Returns:
            The commit.

        Raises:
            LaunchError: The repository cannot be fetched.
        """
        address, _, ref = url.removeprefix("git+").partition("#")
        if ref.startswith("-"):
            raise LaunchError("workspace_fetch", f"{ref!r} is not the name of a branch, tag or commit")
        address, inside = split_login(address)  # older jobs have the login in the URL
        try:
            addresses = self._egress.resolve(*self._egress.check_url(address, "workspace"), "workspace")
            command = ["/bin/sh", "-c", _SCRIPT, "fetch", address, ref or "HEAD"]
            with Tunnel(lambda: connect(addresses), self._idle_timeout_seconds) as tunnel:
                env = _environment(login or inside)
                done = self._sandbox.run(command, folder, self._limits, env=env, tunnel=tunnel, check=check)
        except SpecInvalid as error:
            raise LaunchError("workspace_fetch", error.message) from error
        except FolderFull as error:
            setting = f"GRADIENT_API__MAX_UNPACKED_BYTES={self._limits.folder_bytes}"
            raise LaunchError("workspace_fetch", f"{address}: {error}, which is the limit ({setting})") from error
        except SandboxError as error:
            raise LaunchError("workspace_fetch", f"{address}: {error}") from error
        commit = (done.output.split() or [""])[-1]
        if done.code or not _COMMIT.match(commit):
            why = tunnel.problem or _describe_failure(done.output, done.code)
            raise LaunchError("workspace_fetch", f"{address}: {why}")
        return commit


def _environment(login: str | None) -> dict[str, str]:
    config = dict(_CONFIG)
    if login is not None:
        user, _, password = login.partition(":")
        pair = f"{unquote(user)}:{unquote(password)}".encode()
        config["http.extraHeader"] = f"Authorization: Basic {base64.b64encode(pair).decode()}"
    env = _ENV | {"GIT_CONFIG_COUNT": str(len(config))}
    for number, (key, value) in enumerate(config.items()):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env


def _describe_failure(output: str, code: int) -> str:
    # The server's lines begin with `remote:`. Other text of the server may follow on a line of git's own.
    output = "\n".join(line for line in output.split("\n") if line.startswith(("fatal:", "error:", "fetch:")))
    for pattern, meaning in _ERROR_MESSAGES:
        found = re.search(pattern, output)
        if found:
            return found.expand(meaning)
    return f"git could not fetch it, and ended with {code}"
