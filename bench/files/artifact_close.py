"""Rate of closing a job's outputs (into the store, sha256, on disk), against a plain sha256 of the same file."""

import hashlib
import os
import tempfile
import time
from pathlib import Path

from bench import bounds
from bench.measure import Result, Series, Size, ratio_goal
from core.storage.artifacts.store import DirectoryStore

_MIB = 1024**2


def run(size: Size) -> Result:
    """Measure one large file: hashed, closed, and closed again just after it was written, before it is on disk."""
    mib = size.pick(1024, 32)
    floor = Series(f"sha256 of {mib} MiB", "MiB/s")
    ours = Series("close, the file already on disk", "MiB/s")
    just_written = Series("close, the file just written", "MiB/s")
    flushed = Series("sha256 and then fdatasync, the file just written", "MiB/s")
    with tempfile.TemporaryDirectory(prefix="gradient-bench-") as folder:
        root = Path(folder)
        store = DirectoryStore(root / "store")
        for number in range(size.rounds):
            for measured in (floor, ours, just_written, flushed):
                measured.begin_round()
            file = _write(root / f"job{number}", mib)
            _on_disk(file)
            floor.add(mib / _hash(file))
            ours.add(mib / _close(store, f"ja{number}", file))
            file.unlink()
            file = _write(root / f"again{number}", mib)
            just_written.add(mib / _close(store, f"jb{number}", file))
            store.remove(f"ja{number}")
            store.remove(f"jb{number}")
            file = _write(file.parent, mib)
            flushed.add(mib / (_hash(file) + _on_disk(file)))
            file.unlink()
    goal = ratio_goal(
        f"closing {mib} MiB, of the plain hashing rate", ours, floor, bounds.ARTIFACT_CLOSE, at_most=False
    )
    return Result([ours, floor, just_written, flushed], [goal])


def _write(folder: Path, mib: int) -> Path:
    folder.mkdir(exist_ok=True)
    block = os.urandom(_MIB)
    file = folder / "model.bin"
    file.unlink(missing_ok=True)
    with file.open("wb") as out:
        for _ in range(mib):
            out.write(block)
    return file


def _on_disk(file: Path) -> float:
    began = time.perf_counter()
    with file.open("rb") as opened:
        os.fdatasync(opened.fileno())
    return time.perf_counter() - began


def _hash(file: Path) -> float:
    began = time.perf_counter()
    with file.open("rb") as opened:
        hashlib.file_digest(opened, "sha256")
    return time.perf_counter() - began


def _close(store: DirectoryStore, job_id: str, file: Path) -> float:
    began = time.perf_counter()
    manifest = store.close(job_id, 1, file.parent)
    took = time.perf_counter() - began
    if manifest.state != "complete":
        raise RuntimeError(f"the outputs are {manifest.state}: {manifest.skipped}")
    return took
