"""The wrapper on a disk of 64 KiB that is full: whether the command begins, and how it ended."""

import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from core.storage.artifacts.store import DirectoryStore
from worker.attempt.scratch import Scratch
from worker.backends.base import WRAPPER
from worker.runner.control_files import read_control, read_exit_code

pytestmark = pytest.mark.integration

SIZE = 64 * 1024
FILL = "dd if=/dev/zero of={}/filler bs=4096 2>/dev/null"


@pytest.fixture
def disk(small_disk, tmp_path):
    return small_disk(tmp_path / "attempts", SIZE)


@pytest.fixture
def control(disk, tmp_path):
    scratch = Scratch(disk.folder, "j1", 1)
    scratch.make(DirectoryStore(tmp_path / "store"))
    return scratch.control


def command(control, text):
    """Write the command for the wrapper to run; to be called before the disk is full."""
    (control / "command").write_text(f"{text}\n")


def wrapped(control):
    return subprocess.run(["sh", str(WRAPPER), str(control)], check=False).returncode


def test_a_command_begins_and_ends_on_a_full_disk(disk, control):
    command(control, "exit 7")
    disk.fill()
    assert read_control(control, "started") is None, "room alone is no sign that it began"
    assert read_exit_code(control) is None
    assert wrapped(control) == 7
    assert read_exit_code(control) == 7
    assert wrapped(control) == 97
    assert read_exit_code(control) == 7


def test_the_exit_code_of_a_job_that_fills_its_disk_is_kept(disk, control):
    command(control, f"{FILL.format(disk.folder)}; exit 42")
    assert wrapped(control) == 42
    assert read_exit_code(control) == 42


def test_a_start_that_a_full_disk_refused_may_be_repeated(small_disk, tmp_path):
    """The marker of the first one, which could not be written, refused every later one."""
    disk = small_disk(tmp_path / "few", 16 * SIZE)
    scratch = Scratch(disk.folder, "j1", 1)
    scratch.make(DirectoryStore(tmp_path / "store"))
    command(scratch.control, "exit 7")
    disk.exhaust_inodes()
    assert wrapped(scratch.control) == 97
    assert read_control(scratch.control, "started") is None
    disk.free_inodes()
    assert wrapped(scratch.control) == 7


def test_no_attempt_is_prepared_where_its_end_could_not_be_written(disk, tmp_path):
    disk.fill()
    scratch = Scratch(disk.folder, "j1", 1)
    with pytest.raises(OSError, match="No space left"):
        scratch.make(DirectoryStore(tmp_path / "store"))
    assert not scratch.control.exists()
    disk.free()
    scratch.make(DirectoryStore(tmp_path / "store"))
    command(scratch.control, "exit 7")
    assert wrapped(scratch.control) == 7


def test_of_many_starts_at_once_on_a_full_disk_one_runs(disk, control, tmp_path):
    command(control, f"echo run >>{tmp_path}/runs; exit 7")
    disk.fill()
    with ThreadPoolExecutor(10) as pool:
        codes = list(pool.map(lambda _: wrapped(control), range(10)))
    assert sorted(codes) == [7, *[97] * 9]
    assert (tmp_path / "runs").read_text() == "run\n"


@pytest.mark.parametrize("put", ["mkfifo", "mkdir", "ln -s /dev/null", "ln -s nowhere"])
def test_whatever_is_in_place_of_the_lock_refuses_a_second_start(control, put):
    """A shell's noclobber spares regular files alone."""
    lock = control / "start.lock"
    command(control, f'rm "{lock}"; {put} "{lock}"; exit 7')
    assert wrapped(control) == 7
    (control / "started").unlink()
    assert wrapped(control) == 97
