"""The scratch directory of one attempt: make, fill, empty, remove."""

import os
import re
import shutil
import subprocess
from pathlib import Path

from core.archives import ArchiveLimits, extract
from core.artifact_paths import resolve
from core.artifacts import ArtifactStore
from core.errors import ArtifactNotFound, WorkspaceInvalid
from core.jobs.spec import HIDDEN, JobSpec
from core.workspaces import WorkspaceStore
from worker.backends.base import BackendError

GIT_TIMEOUT_SECONDS = 900
_COPY_BYTES = 1024**2
_USER_INFO = re.compile(r"://[^/\s]*@")
_NAME = re.compile(r"(j[a-z0-9]+)-([0-9]+)\Z")


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

        A later attempt finds what the one before left, so that it can go on from its last checkpoint.
        """
        self.control.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.artifacts.is_dir():
            return
        filling = self.root / "artifacts.new"
        shutil.rmtree(filling, ignore_errors=True)
        filling.mkdir(mode=0o700)
        for file in store.walk(self._job_id, self._attempt - 1):
            target = filling / Path(*resolve(file.path))
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                opened = store.open(self._job_id, self._attempt - 1, file.path)
            except ArtifactNotFound:
                continue  # the listing of an attempt that was never closed may be older than its files
            # A copy, not a link: this attempt may write into its files, the stored ones are closed.
            with opened.file as stored, target.open("wb") as copy:
                shutil.copyfileobj(stored, copy, _COPY_BYTES)
            os.utime(target, ns=(file.mtime_ms * 1_000_000,) * 2)
        filling.rename(self.artifacts)

    def fill(self, spec: JobSpec, store: WorkspaceStore, limits: ArchiveLimits) -> str | None:
        """Fill the workspace, all or nothing; a repeat does nothing.

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
            commit = _fetch(spec.workspace, filling)
        else:
            filling.mkdir()
        filling.rename(self.workspace)
        return commit

    def remove(self) -> None:
        """Remove everything; removing the missing is success."""
        shutil.rmtree(self.root, onerror=_make_removable)


def scratches(attempts: Path) -> list[tuple[str, int]]:
    """(job id, attempt) of every scratch directory there is."""
    if not attempts.is_dir():
        return []
    names = (_NAME.match(entry.name) for entry in attempts.iterdir())
    return [(name[1], int(name[2])) for name in names if name]


def _make_removable(function: object, path: str, error: object) -> None:
    """A job may leave folders without write permission: open them and try once more."""
    del error
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


def _fetch(url: str, target: Path) -> str:
    """Fetch one commit of a git repository: the branch, tag or commit behind `#`, else its default branch."""
    address, _, ref = url.removeprefix("git+").partition("#")
    if ref.startswith("-"):
        raise BackendError("workspace_fetch", f"{ref!r} is not the name of a branch, tag or commit")
    _git(target, "init", "--quiet")
    _git(target, "fetch", "--quiet", "--depth", "1", "--", address, ref or "HEAD")
    _git(target, "checkout", "--quiet", "--detach", "FETCH_HEAD")
    return _git(target, "rev-parse", "HEAD").strip()


def _git(folder: Path, *arguments: str) -> str:
    # Only networks are fetched from, no prompt waits for an answer, and no configuration of ours takes part.
    env = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": str(folder),
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": "https:http:ssh:git",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        "GIT_CONFIG_NOSYSTEM": "1",
        "LC_ALL": "C",
    }
    try:
        done = subprocess.run(  # noqa: S603 - arguments are checked by JobSpec and above
            ["git", *arguments],  # noqa: S607 - the host's git, by PATH
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=GIT_TIMEOUT_SECONDS,
            check=False,
        )
    except FileNotFoundError as error:
        raise BackendError("workspace_fetch", "git is not installed on the worker's machine") from error
    except subprocess.TimeoutExpired as error:
        raise BackendError("workspace_fetch", f"no answer within {GIT_TIMEOUT_SECONDS} seconds") from error
    if done.returncode:
        # Not hide_password: git puts addresses in quotes, and a token that stands for the user's name is a secret too.
        said = " ".join(_USER_INFO.sub(f"://{HIDDEN}@", done.stderr).split())
        raise BackendError("workspace_fetch", said[-500:] or f"git ended with {done.returncode}")
    return done.stdout
