"""Atomic writes, and removing a folder beside others that remove it too."""

import threading

import pytest

from core.system.filesystem import write_atomically
from core.system.untrusted_folders import remove_tree


def test_several_at_once_leave_nothing_and_all_succeed(tmp_path):
    folder = tmp_path / "big"
    for number in range(20):
        (folder / str(number)).mkdir(parents=True)
        for name in range(20):
            (folder / str(number) / str(name)).touch()
    failures = []

    def remove():
        try:
            remove_tree(folder)
        except OSError as error:
            failures.append(error)

    threads = [threading.Thread(target=remove) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert not folder.exists()


def test_a_write_that_fails_changes_nothing(tmp_path):
    def broken():
        yield b"half"
        raise OSError(28, "No space left on device")

    file = tmp_path / "file"
    write_atomically(file, b"one", durable=False)
    with pytest.raises(OSError, match="No space"):
        write_atomically(file, broken())
    with pytest.raises(FileExistsError):
        write_atomically(file, b"two", replace=False)
    assert file.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [file]


def test_a_link_in_place_of_the_file_is_replaced(tmp_path):
    (tmp_path / "target").write_bytes(b"untouched")
    (tmp_path / "file").symlink_to("target")
    write_atomically(tmp_path / "file", b"new")
    assert (tmp_path / "target").read_bytes() == b"untouched"
    assert (tmp_path / "file").read_bytes() == b"new"
