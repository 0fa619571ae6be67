"""Records the images that this service pulled or built on this host, and when a job last used each of them.

An engine records neither. There is one journal file for each engine, named by the engine's id; workers of one host
share it under a lock. Images that are not in it belong to others, and are never removed.
"""

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from core.system.filesystem import write_atomically

logger = logging.getLogger(__name__)

_UNSAFE = re.compile(r"[^A-Za-z0-9-]")


@dataclass(slots=True)
class ImageRecord:
    used_at: float  # time of the last use by a job, Unix seconds
    built: bool = False  # whether it was built here, not pulled
    references: list[str] = field(default_factory=list)  # the names that this service gave it; it may have others


@dataclass(slots=True)
class PendingPull:
    """A pull in progress: its image counts as pulled by this service even if the worker dies meanwhile."""

    at: float  # start time, Unix seconds
    before: str | None  # id of the image that had the name until then, or None


@dataclass(slots=True)
class UsageRecords:
    """The journal's content: images by id, pulls by reference, accounts by image id."""

    images: dict[str, ImageRecord] = field(default_factory=dict)
    pulls: dict[str, PendingPull] = field(default_factory=dict)
    private: dict[str, list[str]] = field(default_factory=dict)
    """Private images: by image id, hashes of the accounts that a registry gave the image to."""

    def record_use(self, image_id: str, reference: str | None, *, built: bool = False) -> None:
        entry = self.images.setdefault(image_id, ImageRecord(time.time(), built))
        entry.used_at = time.time()
        if reference is not None and reference not in entry.references:
            entry.references.append(reference)

    def record_access(self, image_id: str, mark: str | None) -> None:
        """Record that a registry gave an image to an account; None: to an anonymous client, so any job may run it."""
        if mark is None:
            self.private.pop(image_id, None)
        elif mark not in self.private.setdefault(image_id, []):
            self.private[image_id].append(mark)

    def finish_pull(self, reference: str, now_id: str | None) -> None:
        """End a pull, possibly one of a worker that died: record the pulled image."""
        pull = self.pulls.pop(reference, None)
        if pull is not None and now_id not in {None, pull.before}:
            self.record_use(str(now_id), reference)


class ImageUsageJournal:
    def __init__(self, folder: Path, engine_id: str) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._folder = folder
        self._path = folder / f"{_UNSAFE.sub('', engine_id) or 'engine'}.json"

    @contextlib.contextmanager
    def open(self) -> Iterator[UsageRecords]:
        """Open the journal exclusively; changes are saved at the end."""
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

    def _read(self) -> UsageRecords:
        try:
            stored: dict[str, Any] = json.loads(self._path.read_bytes())
            return UsageRecords(
                {image: ImageRecord(**entry) for image, entry in stored["images"].items()},
                {reference: PendingPull(**pull) for reference, pull in stored["pulls"].items()},
                {image: list(marks) for image, marks in stored.get("private", {}).items()},
            )
        except FileNotFoundError:
            return UsageRecords()
        except (ValueError, KeyError, TypeError, AttributeError):
            # Then no image is known to be this service's, and none is removed.
            logger.warning("image_journal_unreadable", extra={"path": str(self._path)})
            return UsageRecords()

    def _write(self, records: UsageRecords) -> None:
        write_atomically(self._path, json.dumps(asdict(records)).encode(), durable=False)
