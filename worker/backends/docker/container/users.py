import hashlib
import os
from dataclasses import dataclass

from core.catalogue.container_privileges import ContainerPolicy
from core.jobs.spec.container_options import uid_gid
from core.settings.docker import DockerSettings
from core.system.untrusted_folders import chown_tree, opened_folder
from worker.backends.base import FIRST_UID, LaunchError, LaunchSpec
from worker.backends.docker.container.config import HOME, USER_NAME, home_folder

_LAST_UID = 2**31 - 2
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
    return project_user(project_id)


def project_user(project_id: str) -> tuple[int, int]:
    """Return user and group that a worker that is root derives from a project's id.

    They are in a range that nothing else on the host uses.
    """
    number = int.from_bytes(hashlib.sha256(project_id.encode()).digest()[:8], "big")
    uid = FIRST_UID + number % (_LAST_UID - FIRST_UID + 1)
    return uid, uid


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
            f"jobs on {spec.machine_type} may not run as root on this host. Leave the user out, name another, or "
            "have the host's administrator allow it (root = true)",
        )
    if requested[0] != os.getuid() != 0:
        raise LaunchError(
            "option_refused",
            f"the worker runs as user {os.getuid()} here and cannot give a job's files to user {requested[0]}. "
            "Leave the user out, or have the worker run as root",
        )
    return ContainerUser(*requested, project)


def chown_folders(spec: LaunchSpec, user: ContainerUser) -> None:
    """If run as root, give the attempt's folders to the job's user, and the storage to the project's."""
    home = home_folder(spec)
    home.mkdir(mode=0o700, exist_ok=True)
    if os.getuid() != 0:
        return
    environments = [spec.python.folder] if spec.python else []
    for folder in (spec.workspace, spec.artifacts, spec.control, home, *environments):
        chown_tree(folder, user.uid, user.gid)
    with opened_folder(spec.storage) as storage:  # only the folder itself: its content belongs to the jobs
        status = os.fstat(storage)
        if (status.st_uid, status.st_gid) != user.project:
            os.fchown(storage, *user.project)
            os.fchmod(storage, _STORAGE_MODE)


def passwd_with(user: ContainerUser, accounts: bytes) -> bytes | None:
    """Return an image's list of users with the job's; None if it has it already.

    Programs ask for the name and the home of their user, and some do not start without an answer.
    """
    lines = accounts.splitlines()
    if any(line.split(b":")[2:3] == [str(user.uid).encode()] for line in lines):
        return None
    taken = any(line.startswith(f"{USER_NAME}:".encode()) for line in lines)
    name = f"{USER_NAME}-{user.uid}" if taken else USER_NAME
    end = b"" if not accounts or accounts.endswith(b"\n") else b"\n"
    return accounts + end + f"{name}:x:{user.uid}:{user.gid}::{HOME}:/bin/sh\n".encode()
