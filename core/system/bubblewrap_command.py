"""The parts of a bubblewrap command that all sandboxes share, and the check that bubblewrap works here."""

import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path

PATH = "/usr/local/bin:/usr/bin:/bin"
START_SECONDS = 30.0  # longest start of a sandbox

_SYSTEM = ("/usr", "/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin")
_CONFIGURATION = ("/etc/ssl", "/etc/pki", "/etc/ca-certificates", "/etc/alternatives", "/etc/ld.so.cache")


def begin_command(*, becomes_other_user: bool = True) -> list[str]:
    """Return the first words: namespaces of its own except the network's, and no capabilities.

    `becomes_other_user`: if this is root, the first program inside drops root, for which it has two capabilities.
    """
    command = ["bwrap", "--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--new-session"]
    command += ["--cap-drop", "ALL"]
    if os.geteuid() == 0:
        return [*command, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"] if becomes_other_user else command
    return [*command, "--unshare-user"]


def bind_system(readable: tuple[str, ...] = ()) -> list[str]:
    """Return the words that mount the system's programs, the interpreter and more, read-only."""
    return list(chain.from_iterable(mount_system(readable).values()))


@cache
def mount_system(
    readable: tuple[str, ...] = (), own_paths: tuple[str, ...] = (), hidden: str | None = None
) -> dict[str, tuple[str, ...]]:
    """Return the words that mount each path of the system's programs, the interpreter and more, read-only, in order.

    Args:
        readable: More files and folders; bubblewrap leaves out those that do not exist.
        own_paths: Folders that are others inside. The caller mounts them: what is shown below them comes later.
        hidden: A folder that is empty inside, also if it lies in one that is shown.
    """
    mounts: dict[str, tuple[str, ...]] = {}
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            mounts[name] = ("--symlink", str(path.readlink()), name)
        elif path.is_dir():
            mounts[name] = ("--ro-bind", name, name)
    shown = list(filter(Path.is_dir, map(Path, _SYSTEM)))
    names = {*_CONFIGURATION, sys.base_prefix, os.path.realpath(sys.base_prefix), *readable, *own_paths}
    for path in sorted({*map(Path, names), *([Path(hidden)] if hidden else [])}):
        name, covered = str(path), any(path.is_relative_to(folder) for folder in shown)
        if name in {*own_paths, hidden}:
            mounts[name] = ("--tmpfs", name) if covered and name == hidden else ()
            shown = [folder for folder in shown if not path.is_relative_to(folder)]
        elif not covered:
            parents = [
                word for parent in reversed(path.parents[:-1]) for word in ("--perms", "0755", "--dir", str(parent))
            ]
            mounts[name] = (*parents, "--ro-bind-try", name, name)
            shown.append(path)
    return mounts


def run_check(command: Sequence[str], given: bytes = b"") -> str | None:
    """Run a bubblewrap command that only has to succeed; return the reason that it does not, or None.

    `given`: its standard input.
    """
    try:
        done = subprocess.run(  # noqa: S603 - words of ours
            command,
            env={"PATH": PATH},
            input=given,
            capture_output=True,
            timeout=START_SECONDS,
            check=False,
        )
    except FileNotFoundError:
        return "bubblewrap is not installed (apt-get install bubblewrap)"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap does not work: {error}"
    why = " ".join(done.stderr.decode(errors="replace").split())
    return None if done.returncode == 0 else f"bubblewrap does not work: {why[:300]}"
