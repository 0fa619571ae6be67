"""Waiting for changes of files, also where the host is short of what that takes."""

import fcntl
import os
import resource
import select
import threading
import time
from pathlib import Path

import pytest

from core.system import inotify
from core.system.inotify import FileWatcher, FolderWatcher

PATIENCE = 30


def test_a_change_and_a_wake_end_the_wait(tmp_path):
    with FileWatcher(tmp_path) as watch:
        assert not watch.wait(0)
        (tmp_path / "new").write_text("x")
        assert watch.wait(PATIENCE)
        assert watch.changed
        watch.wake()
        assert watch.wait(PATIENCE)
        assert not watch.changed
        assert not watch.wait(0)


def test_ignored_files_end_no_wait(tmp_path):
    with FileWatcher(tmp_path, ignored={"lock"}) as watch:
        (tmp_path / "lock").write_text("x")
        assert not watch.wait(0.05)
        threading.Timer(0.05, (tmp_path / "lock").unlink).start()
        threading.Timer(0.1, (tmp_path / "new").touch).start()
        assert watch.wait(PATIENCE)
        assert (tmp_path / "new").exists()
        watch.wake()
        assert watch.wait(PATIENCE)


def test_without_inotify_the_wait_is_short_and_a_wake_is_noticed(tmp_path, monkeypatch):
    def refuse(**_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(inotify, "INotify", refuse)
    with FileWatcher(tmp_path) as watch:
        began = time.monotonic()
        assert not watch.wait(PATIENCE)
        assert time.monotonic() - began < PATIENCE / 2
        watch.wake()
        assert watch.wait(PATIENCE)


def test_what_cannot_be_watched_leaves_no_descriptor_behind(tmp_path):
    before = len(list(Path("/proc/self/fd").iterdir()))
    with FileWatcher(tmp_path / "missing") as watch:
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
    with FileWatcher(tmp_path) as watch:
        watch.wake()
        assert watch.wait(PATIENCE)


@pytest.fixture
def watch():
    watch = FolderWatcher()
    yield watch
    watch.close()


def delivered(watch):
    ready, _, _ = select.select([watch.fileno()], [], [], 5)
    assert ready, "no change was seen"
    watch.dispatch_events()


def test_a_folder_is_watched_until_its_last_watcher_leaves(watch, tmp_path):
    called = []
    with watch.watch(tmp_path, lambda: called.append(1)):
        with watch.watch(tmp_path, lambda: called.append(2)):
            (tmp_path / "x").touch()
            delivered(watch)
            assert set(called) == {1, 2}
        called.clear()
        (tmp_path / "y").touch()
        delivered(watch)
        assert set(called) == {1}
    assert watch.callbacks == {}


def test_a_folder_that_goes_away_while_it_is_watched_is_harmless(watch, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    with watch.watch(folder, list):
        folder.rmdir()
        watch.dispatch_events()
    assert watch.callbacks == {}
