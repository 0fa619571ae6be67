"""The scratch directory of one attempt: make, fill, empty, remove."""

import errno
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from core.archives import ArchiveLimits, extract
from core.artifact_paths import resolve
from core.artifacts import ArtifactFile, ArtifactStore
from core.errors import ArtifactNotFound, WorkspaceInvalid
from core.jobs.spec import JobSpec
from core.trees import flatten
from core.workspaces import WorkspaceStore
from worker.backends.base import RESERVED, BackendError

_COPY_BYTES = 1024**2
_BLOCK_BYTES = 4096
_NAME = re.compile(r"(j[a-z0-9]+)-([0-9]+)\Z")


class _TooDeep(Exception):
    """Folders lie so deep in each other that they cannot be walked through."""


class Scratch:
    """The folders of one attempt, under one root that is named after job and attempt.

    Attributes:
        name: `<job id>-<attempt>`.
        workspace: What the job works in.
        artifacts: What it leaves.
        control: The wrapper's files.
    """

    def __init__(self, attempts: Path, job_id: str, attempt: int) -> None:
        self._job_id = job_id
        self._attempt = attempt
        self.name = f"{job_id}-{attempt}"
        self.root = attempts / self.name
        self.workspace = self.root / "workspace"
        self.artifacts = self.root / "artifacts"
        self.control = self.root / "control"

    def make(self, store: ArtifactStore) -> None:
        """Make the folders; those that are there stay as they are.

        A later attempt finds what one before it left, so that it can go on from its last checkpoint.
        """
        self._make_control()
        if self.artifacts.is_dir():
            return
        filling = self.root / "artifacts.new"
        shutil.rmtree(filling, ignore_errors=True)
        filling.mkdir(mode=0o700)
        for earlier, file in self._left_before(store):
            target = filling / Path(*resolve(file.path))
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                opened = store.open(self._job_id, earlier, file.path)
            except ArtifactNotFound:
                continue  # the listing of an attempt that was never closed may be older than its files
            # A copy, not a link: this attempt may write into its files, the stored ones are closed.
            with opened.file as stored, target.open("wb") as copy:
                shutil.copyfileobj(stored, copy, _COPY_BYTES)
            os.utime(target, ns=(file.mtime_ms * 1_000_000,) * 2)
        filling.rename(self.artifacts)

    def _make_control(self) -> None:
        """Make the control folder, with room for what has to be written on a full disk as well, all or nothing.

        Once it is there a job may have it: nothing in it is written here any more.
        """
        if self.control.is_dir():
            return
        filling = self.root / "control.new"
        shutil.rmtree(filling, ignore_errors=True)
        filling.mkdir(parents=True, mode=0o700)
        for name in RESERVED:
            (filling / name).write_bytes(b" " * _BLOCK_BYTES)
        filling.rename(self.control)

    def _left_before(self, store: ArtifactStore) -> Iterator[tuple[int, ArtifactFile]]:
        """What the latest attempt before this one left that left anything, and which it was."""
        for earlier in range(self._attempt - 1, 0, -1):
            found = False
            for file in store.walk(self._job_id, earlier):
                found = True
                yield earlier, file
            if found:
                return

    def fill(
        self, spec: JobSpec, store: WorkspaceStore, limits: ArchiveLimits, fetch: Callable[[Path], str]
    ) -> str | None:
        """Fill the workspace, all or nothing; a repeat does nothing.

        Args:
            spec: Says with what.
            store: Where uploads are.
            limits: What an upload may cost.
            fetch: Fetches a workspace from git into an empty folder; the commit.

        Returns:
            The commit that was fetched, for a workspace from git.

        Raises:
            BackendError: It cannot be filled.
        """
        if self.workspace.is_dir():
            return None
        filling = self.root / "workspace.new"
        shutil.rmtree(filling, ignore_errors=True)
        commit = None
        if spec.workspace_sha256 is not None:
            _unpack(spec.workspace_sha256, store, filling, limits)
        elif spec.workspace is not None:
            filling.mkdir()
            commit = fetch(filling)
        else:
            filling.mkdir()
        filling.rename(self.workspace)
        return commit

    def folder(self, path: str) -> Path:
        """A folder of the workspace, without links on the way to it.

        Raises:
            BackendError: It is not there, or leads out.
        """
        inside = self.workspace.resolve()
        found = (inside / path).resolve()
        if not found.is_relative_to(inside):
            raise BackendError("no_working_dir", f"{path} leads out of the workspace")
        if not found.is_dir():
            raise BackendError("no_working_dir", f"the workspace has no folder {path}")
        return found

    def remove(self) -> None:
        """Remove everything; removing the missing is success."""
        try:
            shutil.rmtree(self.root, onerror=_make_removable)
        except (RecursionError, _TooDeep):
            flatten(self.root)
            shutil.rmtree(self.root, onerror=_make_removable)


def scratches(attempts: Path) -> list[tuple[str, int]]:
    """(job id, attempt) of every scratch directory there is."""
    if not attempts.is_dir():
        return []
    names = (_NAME.match(entry.name) for entry in attempts.iterdir())
    return [(name[1], int(name[2])) for name in names if name]


def _make_removable(function: object, path: str, error: tuple[type[BaseException], BaseException, object]) -> None:
    """A job may leave folders without write permission: open them and try once more."""
    if isinstance(error[1], OSError) and error[1].errno in {errno.EMFILE, errno.ENAMETOOLONG}:
        raise _TooDeep(path)
    if not os.path.lexists(path):
        return
    for place in (Path(path).parent, Path(path)):
        if not place.is_symlink():
            place.chmod(0o700)
    if function is os.rmdir or Path(path).is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        Path(path).unlink(missing_ok=True)


def _unpack(sha256: str, store: WorkspaceStore, target: Path, limits: ArchiveLimits) -> None:
    if not store.has(sha256):
        raise BackendError("workspace_missing", sha256)
    try:
        extract(store.path(sha256), target, limits)
    except WorkspaceInvalid as error:
        raise BackendError("workspace_invalid", error.message) from error
    except OSError as error:
        raise BackendError("disk_full", str(error)) from error
