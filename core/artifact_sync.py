"""Syncs a job's folder into the store; the final sync is repeated while files change."""

import os
import shutil
from contextlib import suppress
from pathlib import Path

from core.artifact_mirror import Mirror, Stopped, never
from core.artifact_paths import NOT_A_FOLDER, opened_folder
from core.artifact_survey import ArtifactLimits, Skips, Survey, drop_excess, drop_outside_links, drop_sparse, survey
from core.filesystem import OPEN_FOLDER

_FINAL_PASSES = 3


def bring_in(
    directory: Path, source: Path, limits: ArtifactLimits, *, final: bool, stopped: Stopped = never
) -> tuple[Survey, Skips]:
    """Make `directory/files` a mirror of a job's folder.

    Args:
        directory: The attempt's directory in the store.
        source: The folder the job writes to; nothing in it is trusted.
        limits: Limits on what is kept.
        final: The job has ended: changing files are read again, and reported if they keep changing.
        stopped: Returns True once nothing more is to be copied; files not copied by then are reported.

    Returns:
        The files in the store, and those left out.
    """
    incoming = directory / "incoming"
    with suppress(FileNotFoundError):
        shutil.rmtree(incoming)  # left by a sync that was killed
    (directory / "files").mkdir(parents=True, exist_ok=True)
    incoming.mkdir()
    with opened_folder(directory / "files") as store, opened_folder(incoming) as arriving:
        found = _mirror(source, store, arriving, limits, final=final, stopped=stopped)
    incoming.rmdir()
    return found


def _mirror(
    source: Path, store: int, incoming: int, limits: ArtifactLimits, *, final: bool, stopped: Stopped
) -> tuple[Survey, Skips]:
    try:
        origin = os.open(source, OPEN_FOLDER)
    except OSError as error:
        if error.errno not in NOT_A_FOLDER:
            raise
        skips = Skips()
        skips.add(".", "the artifacts folder is gone: kept is what was stored before", lost=True)
        return survey(store, Skips()), skips
    try:
        for _ in range(_FINAL_PASSES if final else 1):
            stored, skips, unsettled = _pass(origin, store, incoming, limits, stopped)
            if not unsettled:
                break
    finally:
        os.close(origin)
    if final:
        for path in unsettled:
            skips.add(path, "changed or vanished while it was being stored", lost=True)
    return stored, skips


def _pass(
    source: int, store: int, incoming: int, limits: ArtifactLimits, stopped: Stopped
) -> tuple[Survey, Skips, list[str]]:
    skips = Skips()
    stored = survey(store, Skips())
    wanted = survey(source, skips, max_files=limits.max_files)
    same_device = os.fstat(source).st_dev == os.fstat(store).st_dev
    drop_outside_links(wanted, stored if same_device else Survey(), skips)
    drop_sparse(wanted, source, limits.max_hole_bytes, skips)
    drop_excess(wanted, limits.max_bytes, skips)
    mirror = Mirror(source, store, incoming, skips, stopped)
    mirror.run(wanted, stored)
    return survey(store, Skips()) if mirror.changed else stored, skips, mirror.unsettled
