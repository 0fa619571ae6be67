"""Disk use of the volumes that an image declares (VOLUME), which the engine does not count as the container's own."""

import logging
import os
import subprocess
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from typing import Any

from docker.api.client import APIClient

from worker.backends.docker.engine.client import Engine

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.5
_VOLUME = "volume"


def volume_folders(engine: Engine, listed: Iterable[dict[str, Any]]) -> list[str]:
    """Return the host folders of containers' volumes.

    `listed`: containers as the engine lists them, which names their volumes without the folders.
    """
    folders = set()
    for container in listed:
        if any(mount["Type"] == _VOLUME for mount in container.get("Mounts") or ()):
            inspected = engine.call(partial(APIClient.inspect_container, container=container["Id"]))
            folders |= {mount["Source"] for mount in inspected["Mounts"] if mount["Type"] == _VOLUME}
    return sorted(folders)


def measure_folders(folders: Iterable[str], ended: Callable[[], bool]) -> int:
    """Measure the disk space of folders in bytes, blocks and not sizes, by `du` as in the disk quota.

    Returns the bytes; 0 if the job ended first.

    Args:
        folders: Folders of the engine. Those that this worker may not read are left out, with a warning.
        ended: Whether the job has ended, and the size is of no interest any more.
    """
    readable = []
    for folder in folders:
        if os.access(folder, os.R_OK | os.X_OK):
            readable.append(folder)
        else:
            _warn_unreadable(folder)
    if not readable:
        return 0
    with subprocess.Popen(  # noqa: S603 - the engine's own folders
        ["du", "-skx", "--", *readable],  # noqa: S607 - of the system
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as scan:
        while True:
            try:
                lines = scan.communicate(timeout=_POLL_SECONDS)[0].splitlines()
            except subprocess.TimeoutExpired:
                if ended():
                    scan.kill()
                    return 0
            else:
                return 1024 * sum(int(line.split()[0]) for line in lines)


@lru_cache  # once for each folder
def _warn_unreadable(folder: str) -> None:
    logger.warning("volume_not_measured: this worker cannot read the engine's folder", extra={"folder": folder})
