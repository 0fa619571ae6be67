"""The log of several hosts: each line once, behind its host's rank, whatever is written and wherever a worker dies."""

import tracemalloc

import pytest

from worker.backends import hosts_log
from worker.backends.hosts_log import LINE_BYTES, HostsLog

RUNNING = [False] * 16


def host_log(control, rank):
    folder = hosts_log.host_folder(control, rank)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "log"


@pytest.fixture
def write(tmp_path):
    """Append to the output of a host."""

    def append(rank, content):
        with host_log(tmp_path, rank).open("ab") as file:
            file.write(content)

    return append


@pytest.fixture
def merged(tmp_path):
    """Merge as a worker that has just started; return the log's lines."""

    def merge(ended=RUNNING):
        HostsLog(tmp_path, 3).merge(ended)
        return (tmp_path / "log").read_bytes().splitlines()

    return merge


def test_a_disk_that_was_full_for_a_moment_repeats_no_line(tmp_path, write, full_disk):
    log = HostsLog(tmp_path, 2)
    write(0, b"first\n")
    log.merge(RUNNING)
    write(1, b"second\n")
    full_disk.left = [6]
    with pytest.raises(OSError, match="No space"):
        log.merge(RUNNING)
    assert (tmp_path / "log").read_bytes() == b"[0] first\n[1] se"
    with pytest.raises(OSError, match="No space"):
        log.merge(RUNNING)
    full_disk.left = None
    write(0, b"third\n")
    log.merge(RUNNING)
    assert (tmp_path / "log").read_bytes() == b"[0] first\n[1] second\n[0] third\n"


@pytest.mark.parametrize("size", [0, 1, 3, 4, 7, 11, 12, 20])
def test_wherever_the_last_worker_died_the_rest_of_its_write_is_added_once(write, merged, full_disk, size):
    write(0, b"first\n")
    merged()
    write(1, b"second\n")
    write(2, b"third\n")
    full_disk.left = [size]
    with pytest.raises(OSError, match="No space"):
        merged()
    full_disk.left = None
    write(0, b"fourth\n")
    assert merged() == [b"[0] first", b"[1] second", b"[2] third", b"[0] fourth"]
    assert len(merged()) == 4


def test_a_line_without_end_is_cut_into_lines_and_takes_no_memory(tmp_path, write, merged):
    size = 48 << 20
    with host_log(tmp_path, 0).open("wb") as file:
        for _ in range(size >> 20):
            file.write(b"x" * (1 << 20))
    write(0, b"rest")
    write(1, b"short\n")
    tracemalloc.start()
    try:
        HostsLog(tmp_path, 3).merge(RUNNING)
        HostsLog(tmp_path, 3).merge(RUNNING)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    lines = (tmp_path / "log").read_bytes().splitlines()
    assert sorted(set(lines)) == [b"[0] " + b"x" * LINE_BYTES, b"[1] short"]
    assert len(lines) == size // LINE_BYTES + 1
    write(0, b" of it\nnext\n")
    assert merged()[-2:] == [b"[0] rest of it", b"[0] next"]


@pytest.mark.parametrize("length", [LINE_BYTES - 1, LINE_BYTES, LINE_BYTES + 1, 3 * LINE_BYTES, 3 * LINE_BYTES + 7])
@pytest.mark.parametrize("cut", [0, 5, LINE_BYTES, LINE_BYTES + 4, LINE_BYTES + 5])
def test_a_long_line_loses_nothing_wherever_the_worker_dies(write, merged, full_disk, length, cut):
    line = bytes(97 + number % 26 for number in range(length))
    write(0, b"before\n" + line + b"\nlast")
    full_disk.left = [cut]
    with pytest.raises(OSError, match="No space"):
        merged([True, False, False])
    full_disk.left = None
    lines = merged([True, False, False])
    assert (lines[0], lines[-1]) == (b"[0] before", b"[0] last")
    assert b"".join(one.removeprefix(b"[0] ") for one in lines[1:-1]) == line
    assert merged() == lines


def test_one_with_very_many_hosts_and_empty_lines_takes_little_memory(tmp_path, write):
    for rank in range(16):
        write(rank, b"\n" * (1 << 17))
    tracemalloc.start()
    try:
        HostsLog(tmp_path, 16).merge(RUNNING)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 << 20
    assert (tmp_path / "log").stat().st_size == sum(len(f"[{rank}] \n") for rank in range(16)) << 17
