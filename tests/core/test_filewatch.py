"""Waiting for changes of files, also where the host is short of what that takes."""

import fcntl
import os
import resource
import time
from pathlib import Path

import pytest

from core import filewatch
from core.filewatch import FileWatch

PATIENCE = 30


def test_a_change_and_a_wake_end_the_wait(tmp_path):
    with FileWatch(tmp_path) as watch:
        assert not watch.wait(0)
        (tmp_path / "new").write_text("x")
        assert watch.wait(PATIENCE)
        watch.wake()
        assert watch.wait(PATIENCE)
        assert not watch.wait(0)


def test_without_inotify_the_wait_is_short_and_a_wake_is_heard(tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(filewatch, "INotify", refuse)
    with FileWatch(tmp_path) as watch:
        began = time.monotonic()
        assert not watch.wait(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 2
        watch.wake()
        assert watch.wait(PATIENCE)


def test_what_cannot_be_watched_leaves_no_descriptor_behind(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with FileWatch(tmp_path / "missing") as watch:
        assert not watch.wait(0)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_descriptors_above_1023_can_be_waited_for(tmp_path, monkeypatch):
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 2000:
        pytest.skip("this process may not open so many files")
    make = os.eventfd

    def high(*arguments):
        low = make(*arguments)
        descriptor = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, 1500)
        os.close(low)
        return descriptor

    monkeypatch.setattr(os, "eventfd", high)
    with FileWatch(tmp_path) as watch:
        watch.wake()
        assert watch.wait(PATIENCE)


def test_waking_a_closed_watch_writes_nowhere(tmp_path):
    watch = FileWatch(tmp_path)
    watch.close()
    watch.close()
    watch.wake()
    assert not list(tmp_path.iterdir())
