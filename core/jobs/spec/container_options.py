from __future__ import annotations

import re
from pathlib import PurePosixPath

from core.errors import SpecInvalid

MAX_PATH = 1000
WORKSPACE, ARTIFACTS = "/paperspace", "/artifacts"  # path of the job's workspace inside the container
NO_NETWORK = "none"
_USER = re.compile(r"(?:root|[0-9]{1,9}(?::[0-9]{1,9})?)\Z")
_ROOT = "0:0"


def check_working_dir(path: str) -> None:
    """Refuse a working directory that is invalid on every machine."""
    if not path.strip() or len(path) > MAX_PATH:
        raise _invalid_working_dir(f"The path has {len(path):,} characters; 1 to {MAX_PATH:,} are allowed.")
    if not path.isprintable():
        raise _invalid_working_dir("The path contains a line break or another control character.")
    if ".." in PurePosixPath(path).parts:
        raise _invalid_working_dir(f"{path[:80]!r} contains '..'.")


def is_in_workspace(path: str) -> bool:
    """Check whether a working directory is inside the workspace."""
    return PurePosixPath(WORKSPACE, path).is_relative_to(WORKSPACE)


def _invalid_working_dir(what: str) -> SpecInvalid:
    return SpecInvalid(
        f"{what} Name a folder of the workspace, such as src/train, or an absolute path in the container.",
        field="workingDir",
    )


def check_user(user: str) -> None:
    """Refuse a user whose UID would be known only inside the image."""
    if not _USER.match(user):
        raise SpecInvalid(
            f"Invalid user {user[:80]!r}. Write UID or UID:GID as numbers, such as 1000:1000, or root; other names "
            "exist only in the image.",
            field="user",
        )


def check_network(network: str | None) -> None:
    """Refuse a network other than none: any other is the administrator's to choose."""
    if network is not None and network != NO_NETWORK:
        raise SpecInvalid(
            f"{network[:80]!r} is not a network for jobs. Write none for no network, or leave it out.",
            field="network",
        )


def uid_gid(user: str) -> str:
    """Return `UID:GID` for a user accepted by `check_user`; the GID defaults to the UID."""
    if user == "root":
        return _ROOT
    uid, _, gid = user.partition(":")
    return f"{int(uid)}:{int(gid or uid)}"


def check_shared_memory(shared_mem_mb: int | None, memory_mb: int | None) -> None:
    """Refuse more shared memory than the job has memory, because shared memory counts against it."""
    if shared_mem_mb is not None and memory_mb is not None and shared_mem_mb > memory_mb:
        raise SpecInvalid(
            f"{shared_mem_mb:,} MiB of shared memory exceed the job's {memory_mb:,} MiB of memory (memoryMb), which "
            "includes shared memory. Request less shared memory or more memory.",
            field="sharedMemMb",
        )
