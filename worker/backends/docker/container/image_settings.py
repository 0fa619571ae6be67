"""Settings of an image for how it is run: those that a job obeys, and notes on the rest.

A job's command is run as `docker run IMAGE COMMAND` would where the image's ENTRYPOINT is there to run a command.
"""

import posixpath
import re
from collections.abc import Callable, Iterator
from typing import Any

from worker.backends import base
from worker.backends.base import LaunchSpec

ENTRYPOINT_FILE = "entrypoint"
"""Control file with the words that the wrapper puts before the command, quoted for a shell."""

_INITS = frozenset({"tini", "tini-static", "dumb-init", "docker-init", "catatonit"})  # the container has one
_PREFIXES = frozenset({"env", "nice", "setarch"})
_CONDA = frozenset({"conda", "mamba", "micromamba"})
_SHELLS = frozenset({"sh", "bash", "dash", "ash", "zsh"})
_RUNS_ARGUMENTS = re.compile(
    rb'(?:^|[;&|]|\b(?:then|else|do)\b)[ \t]*exec[ \t]+"?\$\{?@\}?"?[ \t]*(?:$|[;&|#}])', re.MULTILINE
)
_COPIES_ARGUMENTS = re.compile(rb'^[ \t]*(\w+)=\([ \t]*"\$@"[ \t]*\)', re.MULTILINE)


def find_entrypoint(config: dict[str, Any], read: Callable[[str], bytes | None]) -> list[str] | None:
    """Return the words of the image's ENTRYPOINT that run the command after them.

    Returns none if it does something else with a command, or nobody can tell.

    Args:
        config: The image's configuration.
        read: Returns a file of the image; nothing if there is none.
    """
    entrypoint = _without_init(list(config.get("Entrypoint") or ()))
    if not entrypoint:
        return []
    if any("\n" in word for word in entrypoint):
        return None
    name, rest = posixpath.basename(entrypoint[0]), entrypoint[1:]
    if name in _PREFIXES or (name in _CONDA and rest[:1] == ["run"]):
        return entrypoint
    script = entrypoint[0]
    if name in _SHELLS:
        at = next((at for at, word in enumerate(rest) if not word.startswith("-")), len(rest))
        takes_command = at > 0 and re.fullmatch("-[a-z]*c", rest[at - 1]) is not None
        if at == len(rest):
            return [*entrypoint, *(() if takes_command else ("-c",)), 'exec "$@"', name] if rest else []
        if takes_command:  # the word after the script is its $0
            return entrypoint if len(rest) > at + 1 and _passes_on(rest[at].encode()) else None
        script = rest[at]
    content = next(filter(None, (read(path) for path in _candidates(script, config))), b"")
    return entrypoint if (content.startswith(b"#!") or name in _SHELLS) and _passes_on(content) else None


def _without_init(entrypoint: list[str]) -> list[str]:
    if not entrypoint or posixpath.basename(entrypoint[0]) not in _INITS:
        return entrypoint
    if "--" in entrypoint:
        return entrypoint[entrypoint.index("--") + 1 :]
    return next((entrypoint[at:] for at in range(1, len(entrypoint)) if not entrypoint[at].startswith("-")), [])


def _candidates(program: str, config: dict[str, Any]) -> Iterator[str]:
    if "/" in program:
        yield posixpath.join(config.get("WorkingDir") or "/", program)
        return
    path = next(
        (variable[5:] for variable in config.get("Env") or () if variable.startswith("PATH=")),
        "/usr/local/bin:/usr/bin:/bin",
    )
    yield from (posixpath.join(folder, program) for folder in path.split(":") if folder)


def _passes_on(script: bytes) -> bool:
    copies = _COPIES_ARGUMENTS.findall(script)
    return bool(_RUNS_ARGUMENTS.search(script)) or any(b'exec "${%s[@]}"' % name in script for name in copies)


def describe_rest(config: dict[str, Any], spec: LaunchSpec, user: str, entrypoint: list[str] | None) -> list[str]:
    """Return the notes on what this job does not obey of its image."""
    job = spec.job_spec
    notes = []
    if entrypoint is None and not job.ignore_entrypoint:
        command = " ".join(config["Entrypoint"])[:200]
        notes.append(
            f"The image's ENTRYPOINT ({command}) was not run, because it may not run the command passed to it. If "
            "needed, call it in the command."
        )
    shell = config.get("Shell") or []
    if len(shell) > 2:  # noqa: PLR2004 - more than a shell and -c
        notes.append(f"The image's SHELL ({' '.join(shell)[:200]}) was not used: bash or sh ran the command.")
    if config.get("User") not in {None, "", "0", "root", user, user.partition(":")[0]} and job.user is None:
        notes.append(
            f"The image's USER ({config['User']}) was not used: the job ran as {user}. Set another user with --user."
        )
    folder = config.get("WorkingDir") or "/"
    if folder != "/" and job.working_dir is None and not (job.workspace or job.workspace_sha256):
        notes.append(f"The image's WORKDIR was not used. To start the command there, use --workingDirectory {folder}")
    volumes = [path for path in sorted(config.get("Volumes") or ()) if path not in _MOUNTED]
    if volumes:
        notes.append(
            f"Files written to the image's volumes ({', '.join(volumes)[:200]}) are deleted when the job ends. "
            "Write files to keep to $GRADIENT_ARTIFACTS_DIR or $GRADIENT_STORAGE_DIR."
        )
    if (config.get("Healthcheck") or {}).get("Test", ["NONE"]) != ["NONE"]:
        notes.append("The image's HEALTHCHECK was not run.")
    return notes


_MOUNTED = frozenset({base.WORKSPACE, base.ARTIFACTS, base.STORAGE, base.DATASETS})
