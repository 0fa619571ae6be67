"""`gradient-server prune --environments`: lists and deletes Python environments that no job of this host uses."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

from core.formatting import format_bytes, iso_time
from core.settings import Settings
from core.storage.disk_usage import measure
from worker.environments.cache import EnvironmentCache, StoredEnvironment
from worker.environments.default_environment import DefaultEnvironment, service_python

_ROW = "{:>10}  {:16}  {}"


def run(settings: Settings, *, dry_run: bool, as_json: bool) -> int:
    """Delete unused environments and all downloaded packages, or only list them, and return the exit code."""
    cache = EnvironmentCache(settings)
    default = cache.folder_of(DefaultEnvironment(settings.environments, cache).wanted(service_python()))
    stored = cache.stored()
    unused = [entry for entry in stored if entry.folder != default and not entry.in_use]
    before = folder_bytes(cache.root)
    if dry_run:
        kept = sum(folder_bytes(entry.folder) for entry in stored if entry not in unused)
        freed = max(0, before - kept - folder_bytes(cache.root / "python"))
    else:
        unused = [entry for entry in unused if cache.remove(entry.folder)]
        cache.clean_caches()
        freed = max(0, before - folder_bytes(cache.root))
    lines = _report_lines(unused, freed, dry_run=dry_run)
    print(_format_json(unused, freed, dry_run=dry_run) if as_json else "\n".join(lines))
    return 0


def folder_bytes(folder: Path) -> int:
    """Return the disk space of a folder; files with several hard links count once."""
    return sum(entry.bytes for entry in measure(folder).entries.values())


def environment_fields(entry: StoredEnvironment, size: int) -> dict[str, object]:
    used = iso_time(datetime.fromtimestamp(entry.used_at, UTC))
    return {"id": entry.digest, "bytes": size, "usedAt": used, "inUse": entry.in_use, "requirements": list(entry.lines)}


def _report_lines(unused: Sequence[StoredEnvironment], freed: int, *, dry_run: bool) -> Iterator[str]:
    if unused:
        yield _ROW.format("", "LAST USED (UTC)", "REQUIREMENTS")
        for entry in unused:
            yield _ROW.format(
                entry.digest[:8], f"{datetime.fromtimestamp(entry.used_at, UTC):%Y-%m-%d %H:%M}", entry.summary
            )
    count = f"{len(unused)} environment{'s' * (len(unused) != 1)} and the downloaded packages ({format_bytes(freed)})"
    yield f"{'Would be removed' if dry_run else 'Removed'}: {count if freed or unused else 'nothing'}."


def _format_json(unused: Sequence[StoredEnvironment], freed: int, *, dry_run: bool) -> str:
    environments = [
        {name: value for name, value in environment_fields(entry, 0).items() if name not in {"bytes", "inUse"}}
        for entry in unused
    ]
    return json.dumps({"dryRun": dry_run, "bytes": freed, "environments": environments}, indent=2)
