"""Folders that outlive jobs: one for each project, and the data sets, which every job reads."""

import contextlib
import os
from pathlib import Path

DATASETS = "datasets"
_PROJECTS = "projects"


class Storage:
    """The folders under one root; see docs/operating.md for how they are laid out.

    Args:
        root: `storage/` under GRADIENT_HOME.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @property
    def datasets(self) -> Path:
        """The data sets; an administrator fills it."""
        return self._root / DATASETS

    def of(self, project_id: str, *, mounted: bool) -> Path:
        """A project's own folder, made if it is missing; the data sets are in its folder `datasets`.

        Args:
            project_id: The project.
            mounted: Whether the backend mounts the data sets there; else a link leads to them.
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
            # A folder with something in it is the jobs' own doing, and stays.
            with contextlib.suppress(OSError):
                inside.rmdir()
            with contextlib.suppress(FileExistsError):
                inside.symlink_to(Path(os.pardir, os.pardir, DATASETS))
        return folder

    def unclaimed(self) -> list[str]:
        """Names of what lies beside the projects' folders, where no job sees it: an earlier release shared it."""
        if not self._root.is_dir():
            return []
        return sorted(
            entry.name for entry in self._root.iterdir() if entry.name not in {DATASETS, _PROJECTS, "lost+found"}
        )
