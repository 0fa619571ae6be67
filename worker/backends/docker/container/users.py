import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from core.catalogue.container_privileges import ContainerPolicy
from core.jobs.spec.container_options import uid_gid
from core.settings.docker import DockerSettings
from worker.backends.base import LaunchError, LaunchSpec
from worker.backends.docker.container.config import HOME, USER_NAME, home_folder

_STORAGE_MODE = 0o2770  # access for the project's group, which new files belong to


@dataclass(frozen=True, slots=True)
class ContainerUser:
    uid: int
    gid: int
    project: tuple[int, int]  # `(uid, gid)` of the project's jobs that name no user; they own the project's storage

    @property
    def groups(self) -> tuple[str, ...]:
        """Supplementary groups, so that the user can write to the project's storage."""
        _, group = self.project
        return (str(group),) if group not in {0, self.gid} else ()

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"


def default_user(settings: DockerSettings, project_id: str) -> tuple[int, int]:
    """Return user and group of a project's jobs that name none."""
    if settings.user is not None:
        uid, _, gid = settings.user.partition(":")
        return int(uid), int(gid)
    if os.getuid() != 0:
        return os.getuid(), os.getgid()
    return project_user(settings, project_id)


def project_user(settings: DockerSettings, project_id: str) -> tuple[int, int]:
    """Return user and group that a worker that is root derives from a project's id.

    They are in a range that nothing else on the host uses.
    """
    number = int.from_bytes(hashlib.sha256(project_id.encode()).digest()[:8], "big")
    own = settings.first_uid + number % (settings.last_uid - settings.first_uid + 1)
    return own, own


def resolve_user(spec: LaunchSpec, policy: ContainerPolicy, settings: DockerSettings) -> ContainerUser:
    """Return the user that the job runs as.

    Raises `LaunchError`: the job requests a user that this host does not allow.
    """
    project = default_user(settings, spec.project_id)
    requested = project
    if spec.job_spec.user is not None:
        uid, _, gid = uid_gid(spec.job_spec.user).partition(":")
        requested = int(uid), int(gid)
    if requested != project and 0 in requested and not policy.root:
        raise LaunchError(
            "option_refused",
            f"root is not opened to {spec.machine_type} on this host. Leave the user out, name another, or have "
            "the host's administrator open it (root = true)",
        )
    if requested[0] != os.getuid() != 0:
        raise LaunchError(
            "option_refused",
            f"the worker here runs as user {os.getuid()} and cannot hand a job's files to user {requested[0]}. "
            "Leave the user out, or have it run as root",
        )
    return ContainerUser(*requested, project)


def chown_folders(spec: LaunchSpec, user: ContainerUser) -> None:
    """If run as root, give the attempt's folders to the job's user, and the storage to the project's."""
    home = home_folder(spec)
    home.mkdir(mode=0o700, exist_ok=True)
    if os.getuid() != 0:
        return
    own = [spec.python.folder] if spec.python else []
    chown_trees((user.uid, user.gid), spec.workspace, spec.artifacts, spec.control, home, *own)
    # Only the folder itself: its content belongs to the jobs.
    if _owner(spec.storage) != user.project:
        os.chown(spec.storage, *user.project)
        spec.storage.chmod(_STORAGE_MODE)


def passwd_with(user: ContainerUser, known: bytes) -> bytes | None:
    """Return an image's list of users with the job's; None if it has it already.

    Programs ask for the name and the home of their user, and some do not start without an answer.
    """
    lines = known.splitlines()
    if any(line.split(b":")[2:3] == [str(user.uid).encode()] for line in lines):
        return None
    taken = any(line.startswith(f"{USER_NAME}:".encode()) for line in lines)
    name = f"{USER_NAME}-{user.uid}" if taken else USER_NAME
    end = b"" if not known or known.endswith(b"\n") else b"\n"
    return known + end + f"{name}:x:{user.uid}:{user.gid}::{HOME}:/bin/sh\n".encode()


def chown_trees(user: tuple[int, int], *folders: Path) -> None:
    """Give folders with all in them to a user; what is the user's already stays as it is, its times too."""
    for path in _walk(*folders):
        with suppress(FileNotFoundError):  # another start of the attempt writes its command
            seen = os.lstat(path)
            if (seen.st_uid, seen.st_gid) != user:
                os.chown(path, *user, follow_symlinks=False)


def _owner(folder: Path) -> tuple[int, int]:
    found = folder.stat()
    return found.st_uid, found.st_gid


def _walk(*roots: Path) -> Iterator[str]:
    for root in map(str, roots):
        yield root
        for folder, folders, files in os.walk(root):
            yield from (f"{folder}/{name}" for name in (*folders, *files))
