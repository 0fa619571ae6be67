"""Levels of folders; a pytest plugin that loads nothing of other levels where only unit tests are wanted."""

import re
from pathlib import Path

import pytest

FOLDER_LEVELS = dict.fromkeys(("chaos", "deploy", "e2e", "original", "soak"), "e2e")
FOLDER_LEVELS |= dict.fromkeys(("bench", "images", "migrations"), "integration")
"""Levels of the tests of a whole folder of `tests`."""
_TESTS = Path(__file__).parents[1]
_FILE_LEVEL = re.compile(r"^pytestmark = .*\bmark\.(faults|e2e|integration)\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore folders and files of other levels with `-m unit`."""
    if config.option.markexpr != "unit":
        return None
    if collection_path.is_dir():
        other = collection_path.parent == _TESTS and collection_path.name in FOLDER_LEVELS
    else:
        other = collection_path.suffix == ".py" and bool(_FILE_LEVEL.search(collection_path.read_text("utf-8")))
    return True if other else None
