"""Folders that outlive jobs: one for each project, and the data sets that every job can read."""

import contextlib
import os
import time
from pathlib import Path

from core.storage.shared.uploaded_files import UploadedFiles
from core.system.untrusted_folders import remove_tree

DATASETS = "datasets"
_PROJECTS = "projects"
_INCOMING = "incoming"
_SWEEP_SECONDS = 30.0  # of all: a job with a descriptor of a deleted folder can write to it for ever


class SharedStorage:
    """The folders under one root; docs/operating.md describes their layout."""

    def __init__(
        self,
        root: Path,  # `storage/` under GRADIENT_HOME
        uploaded: UploadedFiles | None = None,  # where what clients store is in a bucket; copies are in the folders
    ) -> None:
        self._root = root
        self.uploaded = uploaded

    @property
    def datasets(self) -> Path:
        """The folder of the data sets, filled by an administrator."""
        return self._root / DATASETS

    @property
    def incoming(self) -> Path:
        """The folder of uploads until they are complete, and of deleted folders until they are empty."""
        return self._root / _INCOMING

    def of_project(self, project_id: str) -> Path:
        """Return the path of a project's folder, which may be missing."""
        return self._root / _PROJECTS / project_id

    def project_folder(self, project_id: str, *, mounted: bool) -> Path:
        """Return a project's folder, created if missing; its folder `datasets` holds the data sets.

        `mounted`: whether the backend mounts the data sets there; if not, a link points to them.
        """
        self.datasets.mkdir(parents=True, exist_ok=True)
        folder = self.of_project(project_id)
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        inside = folder / DATASETS
        if mounted:
            if inside.is_symlink():
                inside.unlink(missing_ok=True)
            inside.mkdir(exist_ok=True)
        elif not inside.is_symlink():
            # A folder that is not empty was filled by jobs, and stays.
            with contextlib.suppress(OSError):
                inside.rmdir()
            with contextlib.suppress(FileExistsError):
                inside.symlink_to(Path(os.pardir, os.pardir, DATASETS))
        return folder

    def sweep_incoming(self, older_than_s: float) -> int:
        """Delete what uploads and deletions left whose process died; return the number of files and folders.

        `older_than_s`: seconds without a change after which they count as left.
        """
        oldest, until, removed = time.time() - older_than_s, time.monotonic() + _SWEEP_SECONDS, 0
        with contextlib.suppress(OSError):  # none yet, or of another user, who sweeps them
            for path in self.incoming.iterdir():
                with contextlib.suppress(OSError):  # it may just have been completed
                    if path.lstat().st_mtime < oldest:
                        remove_tree(path, until - time.monotonic())
                        removed += 1
        return removed
