"""Checkpoints: one .npz file each, written atomically; the newest two are kept."""

import io
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gradient_trainer.errors import DamagedCheckpointsError

Arrays = dict[str, npt.NDArray[Any]]

META = "meta"


@dataclass(frozen=True)
class Checkpoint:
    """A training's state after a step."""

    step: int
    arrays: Arrays
    training: Mapping[str, Any]  # identifies the training, to refuse the checkpoints of another one
    validated_step: int = 0  # step of the last validation; 0: none
    # the target accuracy, and the step and seconds at which it was reached; None: it was not
    target: dict[str, float | None] | None = None


class CheckpointFolder:
    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = folder
        self.set_aside: list[Path] = []  # files that `newest` found damaged and renamed to *.damaged
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
        meta = json.dumps({name: value for name, value in vars(checkpoint).items() if name != "arrays"})
        with partial.open("wb") as file:
            np.savez(file, **{META: np.array(meta)}, **checkpoint.arrays)  # type: ignore[arg-type]  # its stub takes a bool first
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        for old in self._paths()[self._keep :]:
            old.unlink()
        return path

    def newest(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, and rename newer damaged ones; None if there are no checkpoints."""
        damaged = []
        for path in self._paths():
            content = path.read_bytes()
            try:
                checkpoint = _parse(content)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001  zipfile, its decompressors, NumPy and JSON raise a dozen kinds, OSError too
                damaged.append(path)
            else:
                self.set_aside += [path.replace(path.with_suffix(".damaged")) for path in damaged]
                return checkpoint
        if damaged:
            raise DamagedCheckpointsError(
                f"every checkpoint in {self.folder} is damaged ({', '.join(path.name for path in damaged)}); put an "
                "intact copy there, or start from the beginning with --restart"
            )
        return None

    def clear(self) -> None:
        for path in self._paths():
            path.unlink()

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("step-*.npz"), reverse=True)


def _parse(data: bytes) -> Checkpoint:
    # Reading a member to its end also verifies its checksum, which detects damage in the middle.
    with np.load(io.BytesIO(data), allow_pickle=False) as content:
        meta = json.loads(str(content[META]))
        arrays = {name: content[name] for name in content.files if name != META}
    return Checkpoint(arrays=arrays, **meta)
