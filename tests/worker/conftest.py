"""Fixtures of all tests of workers."""

import errno
import os
import resource
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker.backends.tpu.billing import DeletionMonitor


@pytest.fixture(autouse=True)
def _end_deletion_monitors(monkeypatch):
    """End the threads that watch deletions in a cloud of the test, which is gone after it."""
    made = []
    create = DeletionMonitor.__init__

    def remember(monitor, *arguments):
        create(monitor, *arguments)
        made.append(monitor)

    monkeypatch.setattr(DeletionMonitor, "__init__", remember)
    yield
    for monitor in made:
        monitor.add = lambda _entry: None  # an attempt's thread may still end a device
        with monitor._lock:
            monitor._entries.clear()


@pytest.fixture
def many_open_files():
    """More open files than select() takes, as in a worker with many jobs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with ExitStack() as opened:
        opened.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1024):
            opened.enter_context(Path("/dev/null").open("rb"))
        yield


@pytest.fixture
def full_disk(monkeypatch):
    """A disk that takes half of the next write, and nothing more until it has room again."""
    disk = SimpleNamespace(left=None)
    write = os.write

    def write_some(descriptor, content):
        if disk.left is None:
            return write(descriptor, content)
        if not disk.left:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, content[: disk.left.pop()])

    monkeypatch.setattr(os, "write", write_some)
    return disk
