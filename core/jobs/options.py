"""What a job may say about the container it runs in: working directory, user, shared memory."""

import re
from pathlib import PurePosixPath

from core.errors import SpecInvalid

MAX_PATH = 1000
WORKSPACE = "/paperspace"
"""Where a container has the job's workspace."""
_USER = re.compile(r"(?:root|[0-9]{1,9}(?::[0-9]{1,9})?)\Z")
_ROOT = "0:0"


def check_working_dir(path: str) -> None:
    """Refuse a working directory that no machine could have.

    Raises:
        SpecInvalid: With the fix.
    """
    if not path.strip() or len(path) > MAX_PATH:
        raise _bad_folder(f"It has {len(path):,} characters, 1 to {MAX_PATH:,} are taken.")
    if not path.isprintable():
        raise _bad_folder("It holds a line break or another control character.")
    if ".." in PurePosixPath(path).parts:
        raise _bad_folder(f"{path[:80]!r} leads upwards (..).")


def is_in_workspace(path: str) -> bool:
    """Whether a working directory is a folder of the workspace, whatever runs the job."""
    return PurePosixPath(WORKSPACE, path).is_relative_to(WORKSPACE)


def _bad_folder(what: str) -> SpecInvalid:
    return SpecInvalid(
        f"{what} Name a folder of the workspace, such as src/train, or one of the container by its whole path.",
        field="workingDir",
    )


def check_user(user: str) -> None:
    """Refuse a user that could not be told before the container runs.

    Raises:
        SpecInvalid: With the fix.
    """
    if not _USER.match(user):
        raise SpecInvalid(
            f"{user[:80]!r} is no user. Write UID or UID:GID in numbers, such as 1000:1000, or root; what other names "
            "mean is known to the image alone.",
            field="user",
        )


def uid_gid(user: str) -> str:
    """`UID:GID` of a user that `check_user` takes; the group of a lone UID is of the same number."""
    if user == "root":
        return _ROOT
    uid, _, gid = user.partition(":")
    return f"{int(uid)}:{int(gid or uid)}"


def check_shared_memory(shared_mem_mb: int | None, memory_mb: int | None) -> None:
    """Refuse more shared memory than the job has memory: what lies in it counts as the job's.

    Raises:
        SpecInvalid: With the fix.
    """
    if shared_mem_mb is not None and memory_mb is not None and shared_mem_mb > memory_mb:
        raise SpecInvalid(
            f"{shared_mem_mb:,} MiB of shared memory are more than the job's {memory_mb:,} MiB of memory (memoryMb), "
            "which they are a part of. Ask for less, or for more memory.",
            field="sharedMemMb",
        )
