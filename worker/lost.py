"""What should have come into a job's artifacts from elsewhere and could not: noted here, told by the manifest."""

import json
from collections.abc import Iterable
from pathlib import Path

from core.artifact_survey import Skipped


def note_lost(artifacts: Path, folder: str, skipped: Iterable[Skipped]) -> None:
    """Leave word of it for whoever closes the artifacts; a later word replaces it.

    Args:
        artifacts: The attempt's folder of artifacts; the word is left beside it.
        folder: Where in it the files should have been.
        skipped: Their paths below that, and why they are not.
    """
    word = [(f"{folder}/{path}" if folder else path, why) for path, why in skipped]
    new = _place(artifacts).with_suffix(".new")
    new.write_text(json.dumps(word))
    new.replace(_place(artifacts))


def lost(artifacts: Path) -> list[Skipped]:
    """What was noted of an attempt's artifacts."""
    try:
        noted = json.loads(_place(artifacts).read_text())
        return [Skipped(str(path), str(why)) for path, why in noted]
    except (FileNotFoundError, ValueError, TypeError):
        return []  # a job that is no container can write there as well: what it spoils is its own


def _place(artifacts: Path) -> Path:
    return artifacts.with_name("lost.json")
