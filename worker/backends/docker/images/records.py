"""Records which images this service pulled or built on this host, and which accounts may run private ones.

An engine records neither. There is one file for each engine, named by the engine's id; workers of one host share it
under a lock. Images that are not in it belong to others, and are never removed.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from core.system.filesystem import write_atomically

logger = logging.getLogger(__name__)

_UNSAFE = re.compile(r"[^A-Za-z0-9-]")


@dataclass(slots=True)
class ImageRecords:
    ours: dict[str, list[str]] = field(default_factory=dict)  # by image id, the names that this service gave it
    private: dict[str, list[str]] = field(default_factory=dict)
    """Private images: by image id, hashes of the accounts that a registry gave the image to."""

    def add(self, image_id: str, reference: str | None) -> None:
        names = self.ours.setdefault(image_id, [])
        if reference is not None and reference not in names:
            names.append(reference)

    def record_access(self, image_id: str, mark: str | None) -> None:
        """Record that a registry gave an image to an account; None: to an anonymous client, so any job may run it."""
        if mark is None:
            self.private.pop(image_id, None)
        elif mark not in self.private.setdefault(image_id, []):
            self.private[image_id].append(mark)


class ImageRecordsFile:
    def __init__(self, folder: Path, engine_id: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._path = folder / f"{_UNSAFE.sub('', engine_id) or 'engine'}.json"

    @contextlib.contextmanager
    def open(self) -> Iterator[ImageRecords]:
        """Open the file exclusively; changes are saved at the end."""
        with self._locked(self._path.with_suffix(".lock"), fcntl.LOCK_EX):
            records = self._read()
            before = asdict(records)
            yield records
            if asdict(records) != before:
                self._write(records)

    @contextlib.contextmanager
    def keep_name(self, reference: str) -> Iterator[None]:
        """Hold a name that an image has only during a push: no job may take it for the registry's image."""
        with self._locked(self._name_lock(reference), fcntl.LOCK_EX):
            yield

    def is_name_held(self, reference: str) -> bool:
        path = self._name_lock(reference)
        if not path.exists():
            return False
        try:
            with self._locked(path, fcntl.LOCK_SH | fcntl.LOCK_NB):
                return False
        except BlockingIOError:
            return True

    def _name_lock(self, reference: str) -> Path:
        return self._folder / f"name-{hashlib.sha256(reference.encode()).hexdigest()[:32]}.lock"

    @contextlib.contextmanager
    def _locked(self, path: Path, how: int) -> Iterator[None]:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, how)
            yield
        finally:
            os.close(descriptor)

    def _read(self) -> ImageRecords:
        try:
            return ImageRecords(**json.loads(self._path.read_bytes()))
        except FileNotFoundError:
            return ImageRecords()
        except (ValueError, TypeError):
            # Then no image is known to be this service's, and none is removed.
            logger.warning("image_records_unreadable", extra={"path": str(self._path)})
            return ImageRecords()

    def _write(self, records: ImageRecords) -> None:
        write_atomically(self._path, json.dumps(asdict(records)).encode(), durable=False)
