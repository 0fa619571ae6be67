"""Decoded images on disk: each data set is decoded once, and later mapped into memory."""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from gradient_trainer.errors import DataSetError

VERSION = 1  # part of every key; another number makes older caches unused
_FACTS = "facts.json"


def cache_key(files: Iterable[Path], preprocessing: dict[str, Any]) -> str:
    """Return the key of a data set: its files' names, sizes and times of change, and how they are decoded."""
    digest = hashlib.sha256(json.dumps([VERSION, preprocessing], sort_keys=True).encode())
    for path in sorted(files):
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    return digest.hexdigest()[:32]


class ImageCache:
    """The decoded images of one data set in one folder. `key`: see `cache_key`."""

    def __init__(self, folder: Path, key: str) -> None:
        self.path = folder / key

    def exists(self) -> bool:
        return (self.path / _FACTS).is_file()

    def read(self, part: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int32]]:
        """Map the images of a part into memory, for reading, and read its labels."""
        images = np.load(self.path / f"x_{part}.npy", mmap_mode="c")
        return images, np.load(self.path / f"y_{part}.npy")

    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads((self.path / _FACTS).read_text())
        return facts


class CacheWriter:
    """Fills a cache; nothing of it is visible before `commit`. As a context manager it removes the rest."""

    def __init__(self, cache: ImageCache) -> None:
        self._cache = cache
        try:
            cache.path.parent.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix=f"{cache.path.name}.partial-", dir=cache.path.parent))
        except OSError as error:
            raise DataSetError(
                f"decoded images cannot be stored in {cache.path.parent}: {error.strerror}; choose another --cache-dir"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def create(self, part: str, shape: tuple[int, ...], labels: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
        """Return the array to put a part's images into; it is a file, so it may be larger than the memory."""
        np.save(self._folder / f"y_{part}.npy", labels)
        return np.lib.format.open_memmap(self._folder / f"x_{part}.npy", mode="w+", dtype=np.uint8, shape=shape)

    def commit(self, facts: dict[str, Any]) -> None:
        """Make the cache visible, whole; if another process was faster, its equal cache stays."""
        (self._folder / _FACTS).write_text(json.dumps(facts))
        os.sync()
        with suppress(OSError):
            self._folder.rename(self._cache.path)
