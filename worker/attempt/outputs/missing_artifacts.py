"""Records artifacts that could not be fetched; the manifest lists them as skipped."""

import json
from collections.abc import Iterable
from pathlib import Path

from core.storage.artifacts.scan import Skipped
from core.system.filesystem import write_atomically


def record_missing(artifacts: Path, folder: str, skipped: Iterable[Skipped]) -> None:
    """Record files that could not be fetched, for the closing of the artifacts; a later call replaces the record."""
    records = [(f"{folder}/{path}" if folder else path, why) for path, why in skipped]
    write_atomically(_record_path(artifacts), json.dumps(records).encode(), durable=False)


def read_missing(artifacts: Path) -> list[Skipped]:
    try:
        records = json.loads(_record_path(artifacts).read_text())
        return [Skipped(str(path), str(why)) for path, why in records]
    except (FileNotFoundError, ValueError, TypeError):
        return []  # a job that is not a container can write this file too, and harms only itself


def _record_path(artifacts: Path) -> Path:
    return artifacts.with_name("lost.json")
