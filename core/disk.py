"""Free space on the disks of folders."""

import shutil
from collections.abc import Iterable
from pathlib import Path

MIB = 1024**2


def free_bytes(folder: Path) -> int:
    """Return the free bytes on the disk of a folder, which need not exist yet."""
    place = next(one for one in (folder, *folder.parents) if one.exists())
    return shutil.disk_usage(place).free


def shortage(folders: Iterable[Path], min_free_mb: int, *, coming: int = 0) -> str | None:
    """Describe the first of these folders whose disk has too little space; None if all have enough.

    Args:
        folders: Folders that will be written to.
        min_free_mb: MiB that have to stay free; 0: not checked.
        coming: Bytes that will be written.
    """
    for folder in folders if min_free_mb else ():
        free = free_bytes(folder)
        if free - coming < min_free_mb * MIB:
            return f"{free // MIB:,} MiB are free on the disk of {folder}, and {min_free_mb:,} MiB have to stay free"
    return None
