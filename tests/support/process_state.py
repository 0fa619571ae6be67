"""Logging and constants as the process of the tests has them, whatever a test does to them."""

import logging
from collections.abc import Iterator

import pytest
from support.constants import restore_constants


@pytest.fixture(autouse=True)
def _keep_logging() -> Iterator[None]:
    """Undo how a command sets up logging: its handler writes to the test's captured stderr, which is closed then."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


@pytest.fixture(autouse=True)
def _restore_constants() -> Iterator[None]:
    yield
    restore_constants()
