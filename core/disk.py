"""Free space of the disks that folders lie on."""

import shutil
from collections.abc import Iterable
from pathlib import Path

MIB = 1024**2


def free_bytes(folder: Path) -> int:
    """Bytes that may still be written on the disk of a folder, which need not be there yet."""
    place = next(one for one in (folder, *folder.parents) if one.exists())
    return shutil.disk_usage(place).free


def shortage(folders: Iterable[Path], min_free_mb: int, *, coming: int = 0) -> str | None:
    """The first of these folders whose disk has too little room, in words; None: all have enough.

    Args:
        folders: Where something is to be written.
        min_free_mb: MiB that have to stay free; 0: nothing is looked at.
        coming: Bytes that are about to be written.
    """
    for folder in folders if min_free_mb else ():
        free = free_bytes(folder)
        if free - coming < min_free_mb * MIB:
            return f"{free // MIB:,} MiB are free on the disk of {folder}, and {min_free_mb:,} MiB have to stay free"
    return None
