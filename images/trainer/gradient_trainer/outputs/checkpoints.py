"""Checkpoints: one .npz file each, written atomically; the newest two are kept."""

import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Arrays = dict[str, npt.NDArray[Any]]

META = "meta"


@dataclass(frozen=True)
class Checkpoint:
    """A training's state after a step.

    Attributes:
        step: Training steps done.
        arrays: Every variable of model and optimizer, by name.
        training: Identifies the training, to refuse the checkpoints of another one.
    """

    step: int
    arrays: Arrays
    training: Mapping[str, Any]


class CheckpointFolder:
    """The checkpoints of one output folder.

    Attributes:
        set_aside: Files that `newest` found damaged and renamed to *.damaged.
    """

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.set_aside: list[Path] = []
        self._keep = keep
        folder.mkdir(parents=True, exist_ok=True)
        for leftover in folder.glob("*.partial"):
            leftover.unlink()

    def save(self, checkpoint: Checkpoint) -> Path:
        """Write the checkpoint, then remove all but the newest ones.

        The file appears under its name only when its content is on the disk, so that a power cut or a kill leaves
        either a whole checkpoint or none.
        """
        path = self.folder / f"step-{checkpoint.step:08d}.npz"
        partial = path.with_suffix(".partial")
        meta = json.dumps({"step": checkpoint.step, "training": dict(checkpoint.training)})
        with partial.open("wb") as file:
            np.savez(file, **{META: np.array(meta)}, **checkpoint.arrays)  # type: ignore[arg-type]  # its stub takes a bool first
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        self._sync_folder()
        for old in self._paths()[self._keep :]:
            old.unlink()
        return path

    def newest(self) -> Checkpoint | None:
        """Return the newest readable checkpoint; newer damaged ones are renamed."""
        for path in self._paths():
            try:
                return _read(path)
            except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
                self.set_aside.append(path.replace(path.with_suffix(".damaged")))
        return None

    def clear(self) -> None:
        """Remove every checkpoint."""
        for path in self._paths():
            path.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.npz"), reverse=True)

    def _sync_folder(self) -> None:
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _read(path: Path) -> Checkpoint:
    # Reading a member to its end also verifies its checksum, which detects damage in the middle.
    with path.open("rb") as file, np.load(file, allow_pickle=False) as content:
        meta = json.loads(str(content[META]))
        arrays = {name: content[name] for name in content.files if name != META}
    return Checkpoint(step=meta["step"], arrays=arrays, training=meta["training"])
