"""Removing a folder beside others that remove it too."""

import os
import shutil
import threading

import pytest

from core.trees import remove_tree


def test_removing_what_is_not_there_is_success(tmp_path):
    remove_tree(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()


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


def test_what_goes_under_our_hands_does_not_leave_the_rest(tmp_path, monkeypatch):
    folder = tmp_path / "big"
    for name in "abc":
        (folder / name).mkdir(parents=True)
    rmtree, calls = shutil.rmtree, []

    def disturbed(path):
        calls.append(path)
        if len(calls) == 1:
            os.rmdir(folder / "a")  # noqa: PTH106 - as another process would
            raise FileNotFoundError(2, "gone")
        rmtree(path)

    monkeypatch.setattr(shutil, "rmtree", disturbed)
    remove_tree(folder)
    assert len(calls) == 2
    assert not folder.exists()


def test_what_cannot_be_removed_is_said(tmp_path, monkeypatch):
    def refuse(_path):
        raise PermissionError(13, "not yours")

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.raises(PermissionError):
        remove_tree(tmp_path)
