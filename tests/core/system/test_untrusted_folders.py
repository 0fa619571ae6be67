"""Folders that others write to: walked within limits, and never left by a link."""

import itertools
import os
import stat
import threading
import time
from contextlib import suppress

import pytest

from core.storage.disk_usage import measure
from core.system.untrusted_folders import (
    MAX_DEPTH,
    chmod_tree,
    folder_state,
    measure_used_bytes,
    opened_folder,
    remove_tree,
    walk,
)


def dig(folder, levels):
    opened = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir("d" * 200, dir_fd=opened)
        inner = os.open("d" * 200, os.O_RDONLY, dir_fd=opened)
        os.close(opened)
        opened = inner
    os.close(opened)


def test_a_walk_enters_no_link_and_ends_where_folders_are_nested_too_deeply(tmp_path):
    (tmp_path / "outside" / "inner").mkdir(parents=True)
    folder = tmp_path / "folder"
    (folder / "a").mkdir(parents=True)
    (folder / "a" / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(folder / "fifo")
    with opened_folder(folder) as top:
        assert {entry.path for entry in walk(top)} == {"a", "a/link", "fifo"}
    assert folder_state(folder) is not None
    dig(folder, MAX_DEPTH + 2)
    with opened_folder(folder) as top, pytest.raises(OSError, match="nested deeper than 100"):
        list(walk(top))
    assert folder_state(folder) is None, "so it counts as changed"


def test_a_folder_that_becomes_a_link_is_not_measured(tmp_path, monkeypatch):
    """It is replaced between the look at it and the look into it."""
    outside, folder = tmp_path / "outside", tmp_path / "folder" / "a"
    for path in (outside, folder):
        path.mkdir(parents=True)
    (outside / "big").write_bytes(bytes(1 << 20))
    look = os.stat

    def look_and_replace(path, **options):
        status = look(path, **options)
        if str(path).endswith("a"):
            monkeypatch.undo()
            folder.rmdir()
            folder.symlink_to(outside)
        return status

    monkeypatch.setattr(os, "stat", look_and_replace)
    assert sum(entry.bytes for entry in measure(folder.parent).entries.values()) == 0
    assert folder.is_symlink()


def test_a_link_at_the_top_is_refused_and_measured_as_a_link(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o750)
    (outside / "big").write_bytes(bytes(1 << 20))
    link = tmp_path / "link"
    link.symlink_to(outside)
    with pytest.raises(OSError, match="link"):
        chmod_tree(link, lambda _: 0o777)
    assert stat.S_IMODE(outside.stat().st_mode) == 0o750
    assert measure_used_bytes([link]) < 1 << 20 <= measure_used_bytes([outside])
    assert measure_used_bytes([tmp_path / "missing"]) == 0


def test_a_removal_ends_while_somebody_goes_on_to_write(tmp_path):
    top = tmp_path / "top"
    top.mkdir()
    stopped = threading.Event()

    def nest(folder):
        """Nest folders more deeply than a removal follows them, as a job that has a descriptor of the top."""
        for number in itertools.count():
            below = os.dup(folder)
            for _ in range(70):
                if stopped.is_set():
                    return
                try:
                    os.mkdir(str(number), dir_fd=below)
                    below, before = os.open(str(number), os.O_RDONLY, dir_fd=below), below
                except OSError:
                    break
                os.close(before)
            os.close(below)

    with opened_folder(top) as folder:
        writers = [threading.Thread(target=nest, args=(folder,)) for _ in range(2)]
        for writer in writers:
            writer.start()
        began = time.monotonic()
        with suppress(OSError):  # or it was faster than they
            remove_tree(top, seconds=1)
        took = time.monotonic() - began
        stopped.set()
        for writer in writers:
            writer.join()
    remove_tree(top)
    assert not top.exists()
    assert took < 30
