"""Records of what was left on another machine, or in a bucket: the manifest lists it as skipped."""

import json
from collections.abc import Iterable
from pathlib import Path

from core.storage.artifacts.scan import Skipped
from core.system.filesystem import write_atomically


def record_missing(artifacts: Path, skipped: Iterable[Skipped], notes: Iterable[str] = ()) -> None:
    """Record files that could not be fetched, and notes, for the closing of the artifacts; replaces the last record."""
    content = json.dumps([list(skipped), list(notes)]).encode()
    write_atomically(_record_path(artifacts), content, durable=False)


def read_missing(artifacts: Path) -> tuple[list[Skipped], list[str]]:
    try:
        skipped, notes = json.loads(_record_path(artifacts).read_text())
        return [Skipped(str(path), str(why)) for path, why in skipped], [str(text) for text in notes]
    except (FileNotFoundError, ValueError, TypeError):
        return [], []  # a job that is not a container can write this file too, and harms only itself


def _record_path(artifacts: Path) -> Path:
    return artifacts.with_name("lost.json")
