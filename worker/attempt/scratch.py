import json
import logging
import os
import re
import shutil
import stat
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from core.errors import ArtifactNotFound, WorkspaceInvalid, WorkspaceNotFound
from core.jobs.spec.job_spec import JobSpec
from core.storage.artifacts.folder_mirror import Stopped
from core.storage.artifacts.paths import parse_public_path
from core.storage.artifacts.scan import Skipped
from core.storage.artifacts.store import ArtifactFile, ArtifactStore
from core.storage.workspaces import WorkspaceStore
from core.storage.workspaces.limits import WorkspaceLimits
from core.system.filesystem import write_atomically
from core.system.untrusted_folders import CREATE_FILE, move, opened_beneath, opened_folder, remove_tree
from worker.backends.base import Handle, LaunchError, base_handle
from worker.runner.control_files import RESERVED_FILES
from worker.runner.workspace_files import WorkspaceFiles

logger = logging.getLogger(__name__)

_COPY_BYTES = 1024**2
_KERNEL_COPY_BYTES = 1024**3
_RESERVED_BYTES = 64  # more than is written there; shells read the rest one byte at a time
_PROJECT_FILES = ("pyproject.toml", "setup.py", "setup.cfg")
_FOLDER_NAME = re.compile(r"(j[a-z0-9]+)-([0-9]+)\Z")


class Scratch:
    """The folders of one attempt, under one root that is named after job and attempt."""

    def __init__(self, attempts: Path, job_id: str, attempt: int) -> None:
        self._job_id = job_id
        self._attempt = attempt
        self.name = f"{job_id}-{attempt}"  # `<job id>-<attempt>`
        self.root = attempts / self.name
        self.workspace = self.root / "workspace"
        self.artifacts = self.root / "artifacts"
        self.control = self.root / "control"
        self.event_files = self.root / "event-files.json"  # their paths
        self._listing = self.root / "workspace.json"
        # the files of the workspace, compared with those before the start
        self.workspace_files = WorkspaceFiles(self.workspace, self._listing)

    def own_handle(self, stored: object) -> Handle:
        """Return a stored handle, as far as it is of this attempt: another host may have written it.

        Nothing in it leads to another attempt's processes or files. It is empty if none is stored.
        """
        if not isinstance(stored, dict):
            return {}
        base = base_handle(self._job_id, self._attempt, self.control)
        inner = {name: stored[name] | base for name in ("runner", "vm") if isinstance(stored.get(name), dict)}
        return stored | inner | base

    def make(self, store: ArtifactStore) -> None:
        """Create the folders; existing ones stay as they are.

        A later attempt gets a copy of an earlier attempt's artifacts, so that it can resume from the last checkpoint.
        """
        self._create_control_folder()
        if self.artifacts.is_dir():
            return
        if self._attempt == 1:
            self.artifacts.mkdir(mode=0o700)
            return
        filling = self.root / "artifacts.new"
        remove_tree(filling)
        filling.mkdir(mode=0o700)
        with opened_folder(filling) as folder:
            # The list of files of an attempt that was never closed may be outdated.
            copy_artifacts(store, self._job_id, self._attempt - 1, folder, missing_ok=True)
        move(filling, self.artifacts)

    def _create_control_folder(self) -> None:
        """Create the control folder, all or nothing, with space reserved for what must be written even on a full disk.

        Once it exists, a job may have access to it: this worker writes nothing in it any more.
        """
        if self.control.is_dir():
            return
        self.root.mkdir(parents=True, exist_ok=True)
        filling = self.root / "control.new"
        remove_tree(filling)
        filling.mkdir(mode=0o700)
        for name in RESERVED_FILES:
            (filling / name).write_bytes(b" " * _RESERVED_BYTES)
        move(filling, self.control)

    def unpack_workspace(
        self,
        spec: JobSpec,
        store: WorkspaceStore,
        limits: WorkspaceLimits,
        fetch: Callable[[Path], str],
        place_inputs: Callable[[Path], None],
    ) -> str | None:
        """Fill the workspace, all or nothing; a repeat does nothing.

        `fetch`: fetches a workspace from git into an empty folder, and returns the commit. `place_inputs`: adds the
        artifacts of other jobs. Returns the commit that was fetched, for a workspace from git. Raises `LaunchError`:
        the workspace cannot be filled.
        """
        if self.workspace.is_dir():
            return None
        filling = self.root / "workspace.new"
        remove_tree(filling)
        commit = None
        if spec.workspace_sha256 is not None:
            _unpack(spec.workspace_sha256, store, filling, limits)
            _write_commit(spec, filling)
        else:
            filling.mkdir()
            commit = fetch(filling) if spec.workspace is not None else None
        place_inputs(filling)
        if spec.workspace is not None or spec.workspace_sha256 is not None or spec.inputs:
            WorkspaceFiles(filling, self._listing).record()
        move(filling, self.workspace)
        return commit

    def folder(self, path: str) -> Path:
        """Return a folder of the workspace, with links resolved."""
        inside = self.workspace.resolve()
        folder = (inside / path).resolve()
        if not folder.is_relative_to(inside):
            raise LaunchError("no_working_dir", f"{path} leads out of the workspace")
        if not folder.is_dir():
            raise LaunchError("no_working_dir", f"the workspace has no folder {path}")
        return folder

    def may_have_artifacts(self) -> bool:
        """Return whether there is anything in the folder of the job's outputs, as far as it can be read."""
        try:
            with os.scandir(self.artifacts) as entries:
                return any(entries)
        except OSError:
            return True

    def collect_outputs(
        self, handle: object, patterns: Sequence[str], max_bytes: int | None, stopped: Stopped
    ) -> tuple[list[Skipped], list[str]]:
        """See `WorkspaceFiles.collect`; a TPU VM has collected what is on its disk, and reported what it left out."""
        missing, notes = read_missing(self.artifacts)
        if "vm" in self.own_handle(handle):
            return missing, notes
        skipped, texts = self.workspace_files.collect(patterns, self.artifacts, max_bytes, stopped)
        return [*missing, *skipped], [*notes, *texts]

    def remove(self) -> None:
        """Remove everything that can be removed; a missing folder is not an error."""
        try:
            remove_tree(self.root)
        except OSError as error:
            logger.warning("scratch_not_removed", extra={"folder": str(self.root), "why": str(error)})

    def remove_all_but(self, kept: Collection[str]) -> None:
        """Remove what else is in the root; an error that is not about a missing file is raised."""
        for path in self.root.iterdir():
            if path.name not in kept:
                remove_tree(path)


def copy_artifacts(
    store: ArtifactStore,
    job_id: str,
    attempt: int,
    folder: int,  # its descriptor
    *,
    check: Callable[[], object] = lambda: None,  # called before each file
    missing_ok: bool = False,
) -> None:
    """Copy the artifacts of the latest attempt that left any, from this one back, into an empty folder.

    Copies, not links: the job may write to them, but stored files must not change. Raises `ArtifactNotFound`: a file is
    not stored any more.
    """
    for earlier in range(attempt, 0, -1):
        files, folders = list(store.walk(job_id, earlier)), store.folders(job_id, earlier)
        for file in files:
            check()
            with suppress(*((ArtifactNotFound,) if missing_ok else ())):
                _copy_artifact(store, job_id, earlier, file, folder)
        # Innermost first, and after the files: each changes the time of the folder that it is in.
        for made in sorted(folders, key=lambda folder: folder.path.count("/"), reverse=True):
            with opened_beneath(folder, parse_public_path(made.path), create=True, mode=0o755) as target:
                os.fchmod(target, made.mode | stat.S_IRWXU)
                os.utime(target, ns=(made.mtime_ms * 1_000_000,) * 2)
        if files or folders:
            return


def _copy_artifact(store: ArtifactStore, job_id: str, attempt: int, file: ArtifactFile, folder: int) -> None:
    *above, name = parse_public_path(file.path)
    stored = store.open(job_id, attempt, file.path).file
    with (
        stored,
        opened_beneath(folder, above, create=True, mode=0o755) as parent,
        os.fdopen(os.open(name, CREATE_FILE, 0o600, dir_fd=parent), "wb") as copy,
    ):
        try:  # the kernel shares the blocks of both files where the file system can
            while os.copy_file_range(stored.fileno(), copy.fileno(), _KERNEL_COPY_BYTES):
                pass
        except (AttributeError, OSError):  # from another file system, or a bucket
            shutil.copyfileobj(stored, copy, _COPY_BYTES)
            copy.flush()
        os.fchmod(copy.fileno(), file.mode | stat.S_IRUSR)
        os.utime(copy.fileno(), ns=(file.mtime_ms * 1_000_000,) * 2)


def record_missing(artifacts: Path, skipped: Iterable[Skipped], notes: Iterable[str] = ()) -> None:
    """Record files that are left on another machine, or in a bucket, and notes; replaces the last record.

    The manifest lists them as skipped.
    """
    content = json.dumps([list(skipped), list(notes)]).encode()
    write_atomically(_record_path(artifacts), content, durable=False)


def read_missing(artifacts: Path) -> tuple[list[Skipped], list[str]]:
    try:
        skipped, notes = json.loads(_record_path(artifacts).read_text())
        return [Skipped(str(path), str(why)) for path, why in skipped], [str(text) for text in notes]
    except (FileNotFoundError, ValueError, TypeError):
        return [], []  # a job that is not a container can write this file too, and harms only itself


def _record_path(artifacts: Path) -> Path:
    return artifacts.with_name("lost.json")


def list_scratch_folders(attempts: Path) -> list[tuple[str, int]]:
    """List (job id, attempt) of every scratch directory."""
    if not attempts.is_dir():
        return []
    names = (_FOLDER_NAME.match(entry.name) for entry in attempts.iterdir())
    return [(name[1], int(name[2])) for name in names if name]


def _write_commit(spec: JobSpec, workspace: Path) -> None:
    """Write the commit of a project into the file in which setuptools-scm and its like look for it without git."""
    packaged = any(next(workspace.glob(f"{at}{name}"), None) for at in ("", "*/") for name in _PROJECT_FILES)
    if spec.code_commit is None or not packaged:
        return
    described = f"describe-name: {spec.code_describe}\n" if spec.code_describe else ""
    with suppress(OSError), (workspace / ".git_archival.txt").open("x") as file:  # a repository may have its own
        file.write(f"node: {spec.code_commit}\n{described}")


def _unpack(sha256: str, store: WorkspaceStore, target: Path, limits: WorkspaceLimits) -> None:
    try:
        store.extract(sha256, target, limits)
    except WorkspaceNotFound as error:
        raise LaunchError("workspace_missing", sha256) from error
    except WorkspaceInvalid as error:
        raise LaunchError("workspace_invalid", error.message) from error
