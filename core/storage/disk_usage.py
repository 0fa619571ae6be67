"""Measures the disk space below GRADIENT_HOME, by what holds it and by job."""

import os
import re
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from stat import S_ISDIR

from core.system.untrusted_folders import opened_folder, walk

_JOB_ID = re.compile(r"(j[a-z0-9]{13})(?:-[0-9]+)?\Z")
_JOB_DEPTH = 3  # a job's id is at most the third name of a path: `logs/jab/jabcdefgh12345`, `attempts/jabcdefgh12345-1`
_STAT_BLOCK = 512


@dataclass(slots=True)
class FolderUsage:
    """Disk space of one folder: bytes on disk, number of files, and Unix time of the oldest change of one."""

    bytes: int = 0
    count: int = 0
    oldest: float | None = None

    def add(self, status: os.stat_result) -> None:
        self.bytes += status.st_blocks * _STAT_BLOCK
        self.count += 1
        self.oldest = status.st_mtime if self.oldest is None else min(self.oldest, status.st_mtime)


@dataclass(slots=True)
class DiskUsage:
    """Disk space below a folder, by the folders and files in it, and of the logs, artifacts and scratch of each job."""

    entries: dict[str, FolderUsage] = field(default_factory=dict)
    jobs: Counter[str] = field(default_factory=Counter)
    unreadable: int = 0  # files and folders that could not be measured


def measure(root: Path) -> DiskUsage:
    """Measure everything below a folder; files with several hard links count once, links are not followed."""
    usage = DiskUsage()
    seen: set[tuple[int, int]] = set()

    def count(_: OSError) -> None:
        usage.unreadable += 1

    with suppress(FileNotFoundError), opened_folder(root.resolve()) as top:
        for entry in walk(top, count, every_device=True):
            status, names = entry.status, entry.path.split("/")
            identity = status.st_dev, status.st_ino
            if S_ISDIR(status.st_mode) or (status.st_nlink > 1 and identity in seen):
                continue
            seen.add(identity)
            usage.entries.setdefault(names[0], FolderUsage()).add(status)
            ids = (_JOB_ID.match(name) for name in names[1:_JOB_DEPTH])
            if owner := next((identifier for identifier in ids if identifier), None):
                usage.jobs[owner[1]] += status.st_blocks * _STAT_BLOCK
    return usage
