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
from gradient_server.commands.prune.environments import environment_fields, folder_bytes
from worker.environments.cache import EnvironmentCache, StoredEnvironment

_KINDS = {
    "workspaces": "uploaded folders",
    "artifacts": "artifacts of jobs",
    "logs": "logs of jobs",
    "attempts": "scratch folders of running jobs",
    "storage": "storage of projects",
    "environments": "Python packages of jobs and their downloads",
}
_DATABASE = "database"
_OTHER = "other"
_LARGEST_JOBS = 10
_HINTS = ("", "`gradient-cli jobs delete ID`, `gradient-server prune` and `prune --environments` free space.")
_ROW = "{:12} {:>10} {:>9}  {:17} {}"

_Environments = list[tuple[StoredEnvironment, int]]
_Bucket = dict[str, tuple[int, int]]  # number of objects and their bytes, by kind


def run(settings: Settings, *, as_json: bool) -> int:
    """Print the disk space by kind and of the largest jobs. Raises `StoreUnavailable`: the folder does not exist."""
    root = settings.root
    if not root.is_dir():
        raise StoreUnavailable(f"The folder {root} does not exist. Check GRADIENT_HOME.")
    usage = measure(root)
    bucket = None if settings.store.url is None else _measure_bucket(settings)
    kinds = _by_kind(usage, settings)
    cache = EnvironmentCache(settings)
    environments = [(entry, folder_bytes(entry.folder)) for entry in cache.stored()]
    if as_json:
        print(_format_json(root, usage, kinds, environments, bucket))
    else:
        lines = *_report_lines(root, usage, kinds), *_environment_lines(environments), *_bucket_lines(settings, bucket)
        print("\n".join((*lines, *_HINTS)))
    return 0


def _measure_bucket(settings: Settings) -> _Bucket | str:
    """Return the number of objects and their bytes by kind, or why there is no answer."""
    # Imported here: only these commands need the library.
    from core.storage.buckets.files import measure_bucket

    try:
        return measure_bucket(settings)
    except StoreUnavailable as error:
        return error.message


def _bucket_lines(settings: Settings, bucket: _Bucket | str | None) -> Iterator[str]:
    if bucket is not None:
        yield ""
        yield f"Objects in {settings.store.url}:"
    if isinstance(bucket, str):
        yield f"  {bucket}"
    elif bucket:
        for kind, (count, size) in sorted(bucket.items()):
            yield f"  {format_bytes(size):>10}  {count:>9,}  {kind}"


def _by_kind(usage: DiskUsage, settings: Settings) -> dict[str, FolderUsage]:
    """Merge the entries that are no store of their own."""
    database = settings.sqlite_file.name if settings.sqlite_file else None
    kinds = {kind: FolderUsage() for kind in (*_KINDS, _DATABASE, _OTHER)}
    for name, entry in usage.entries.items():
        is_database = database is not None and name in {database, f"{database}-wal", f"{database}-shm"}
        kind = kinds[name if name in _KINDS else _DATABASE if is_database else _OTHER]
        kind.bytes += entry.bytes
        kind.count += entry.count
        oldest = [at for at in (kind.oldest, entry.oldest) if at is not None]
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
        yield f"{usage.unreadable:,} files or folders could not be measured. Run this command as the service's user."
    if usage.jobs:
        yield ""
        yield "Largest jobs (log, artifacts and scratch folder):"
        for job_id, size in usage.jobs.most_common(_LARGEST_JOBS):
            yield f"  {format_bytes(size):>10}  {job_id}"


def _environment_lines(environments: _Environments) -> Iterator[str]:
    if environments:
        yield ""
        yield "Python environments of jobs, with their shared downloads:"
    for entry, size in reversed(environments):
        used = "in use" if entry.in_use else f"{_moment(entry.used_at):%Y-%m-%d %H:%M}"
        yield f"  {format_bytes(size):>10}  {entry.digest[:8]}  {used:16}  {entry.summary}"


def _format_json(
    root: Path,
    usage: DiskUsage,
    kinds: dict[str, FolderUsage],
    environments: _Environments,
    bucket: _Bucket | str | None,
) -> str:
    fields = {
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
        "environments": [environment_fields(entry, size) for entry, size in environments],
        "unreadable": usage.unreadable,
        "bucket": {kind: {"objects": count, "bytes": size} for kind, (count, size) in bucket.items()}
        if isinstance(bucket, dict)
        else bucket,
    }
    return json.dumps(fields, indent=2)


def _moment(unix_seconds: float) -> datetime:
    return datetime.fromtimestamp(unix_seconds, UTC)
