"""Folders that outlive jobs: one for each project, and the data sets that every job can read."""

import contextlib
import os
from pathlib import Path

DATASETS = "datasets"
_PROJECTS = "projects"


class SharedStorage:
    """The folders under one root; docs/operating.md describes their layout.

    Args:
        root: `storage/` under GRADIENT_HOME.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def datasets(self) -> Path:
        """The folder of the data sets, filled by an administrator."""
        return self._root / DATASETS

    def project_folder(self, project_id: str, *, mounted: bool) -> Path:
        """Return a project's folder, created if missing; its folder `datasets` holds the data sets.

        Args:
            project_id: The project.
            mounted: Whether the backend mounts the data sets there; if not, a link points to them.
        """
        self.datasets.mkdir(parents=True, exist_ok=True)
        folder = self._root / _PROJECTS / project_id
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
