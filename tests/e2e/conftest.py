"""Tests that need a browser are reported as not run where there is none, never as passed."""

import os

import pytest
from browser import find_chromium

_MISSING = "no Chromium is installed (apt-get install chromium)"
_not_run: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take the tests that need a browser out where there is none."""
    if find_chromium() is not None:
        return
    wanting = [item for item in items if "browser" in getattr(item, "fixturenames", ())]
    if os.environ.get("CI") and wanting:
        raise pytest.UsageError(_MISSING)
    items[:] = [item for item in items if item not in wanting]
    config.hook.pytest_deselected(items=wanting)
    _not_run.extend(item.nodeid for item in wanting)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _not_run:
        terminalreporter.write_sep("=", f"NOT RUN: {len(_not_run)} tests: {_MISSING}", yellow=True)
