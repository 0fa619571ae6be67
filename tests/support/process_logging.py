"""Logging as the process of the tests has it, whatever they run in it."""

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _keep_logging() -> Iterator[None]:
    """Undo how a command sets up logging: its handler writes to the test's captured stderr, which is closed then."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)
