"""`gradient-server disk`: shows what holds the disk space below GRADIENT_HOME."""

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from core.errors import StoreUnavailable
from core.formatting import format_bytes, iso_time
from core.settings import Settings
from core.storage.disk_usage import DiskUsage, FolderUsage, measure

_KINDS = {
    "workspaces": "uploaded folders",
    "artifacts": "artifacts of jobs",
    "logs": "logs of jobs",
    "attempts": "scratch folders of running jobs",
    "storage": "storage of the projects",
}
_DATABASE = "database"
_OTHER = "other"
_LARGEST_JOBS = 10
_ROW = "{:12} {:>10} {:>9}  {:17} {}"


def run(settings: Settings, *, as_json: bool) -> int:
    """Print the disk space by kind and of the largest jobs.

    Raises:
        StoreUnavailable: The folder does not exist.
    """
    root = settings.root
    if not root.is_dir():
        raise StoreUnavailable(f"The folder {root} does not exist. Check GRADIENT_HOME.")
    usage = measure(root)
    kinds = _by_kind(usage, settings)
    print(_format_json(root, usage, kinds) if as_json else "\n".join(_report_lines(root, usage, kinds)))
    return 0


def _by_kind(usage: DiskUsage, settings: Settings) -> dict[str, FolderUsage]:
    """Merge the entries that are no store of their own."""
    prefix = "sqlite:///"
    url = settings.database_url
    database = Path(url.removeprefix(prefix)).name if url.startswith(prefix) else None
    kinds = {kind: FolderUsage() for kind in (*_KINDS, _DATABASE, _OTHER)}
    for name, found in usage.entries.items():
        is_database = database is not None and name in {database, f"{database}-wal", f"{database}-shm"}
        kind = kinds[name if name in _KINDS else _DATABASE if is_database else _OTHER]
        kind.bytes += found.bytes
        kind.count += found.count
        oldest = [at for at in (kind.oldest, found.oldest) if at is not None]
        kind.oldest = min(oldest, default=None)
    return kinds


def _report_lines(root: Path, usage: DiskUsage, kinds: dict[str, FolderUsage]) -> Iterator[str]:
    yield _ROW.format("WHAT", "BYTES", "FILES", "OLDEST (UTC)", "")
    for name, kind in kinds.items():
        oldest = f"{_moment(kind.oldest):%Y-%m-%d %H:%M}" if kind.oldest is not None else ""
        yield _ROW.format(name, format_bytes(kind.bytes), f"{kind.count:,}", oldest, _KINDS.get(name, "")).rstrip()
    total = sum(kind.bytes for kind in kinds.values())
    free = shutil.disk_usage(root).free
    yield f"{format_bytes(total)} in {root}; {format_bytes(free)} free"
    if usage.unreadable:
        yield f"{usage.unreadable:,} files or folders could not be measured. Run this as the service's user."
    if usage.jobs:
        yield ""
        yield "Largest jobs (log, artifacts and scratch folder):"
        for job_id, size in usage.jobs.most_common(_LARGEST_JOBS):
            yield f"  {format_bytes(size):>10}  {job_id}"
    yield ""
    yield "`gradient-cli jobs delete ID` and `gradient-server prune` free space."


def _format_json(root: Path, usage: DiskUsage, kinds: dict[str, FolderUsage]) -> str:
    found = {
        "home": str(root),
        "freeBytes": shutil.disk_usage(root).free,
        "kinds": {
            name: {
                "bytes": kind.bytes,
                "files": kind.count,
                "oldest": None if kind.oldest is None else iso_time(_moment(kind.oldest)),
            }
            for name, kind in kinds.items()
        },
        "largestJobs": [{"id": job_id, "bytes": size} for job_id, size in usage.jobs.most_common(_LARGEST_JOBS)],
        "unreadable": usage.unreadable,
    }
    return json.dumps(found, indent=2)


def _moment(unix_seconds: float) -> datetime:
    return datetime.fromtimestamp(unix_seconds, UTC)
