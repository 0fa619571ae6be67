"""Many folders, one inotify instance."""

import select
import threading

import pytest

from core.folderwatch import FolderWatch


@pytest.fixture
def watch():
    watch = FolderWatch()
    yield watch
    watch.close()


def delivered(watch):
    ready, _, _ = select.select([watch.fileno()], [], [], 5)
    assert ready, "no change was seen"
    watch.deliver()


def test_only_those_who_watch_a_folder_are_called(watch, tmp_path):
    called = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    with watch.watching(tmp_path / "a", lambda: called.append("a")):
        with watch.watching(tmp_path / "b", lambda: called.append("b")):
            (tmp_path / "b" / "new").write_text("x")
            delivered(watch)
            assert set(called) == {"b"}
        called.clear()
        (tmp_path / "b" / "new").write_text("y")
        (tmp_path / "a" / "new").write_text("y")
        delivered(watch)
        assert set(called) == {"a"}


def test_a_folder_is_watched_until_its_last_watcher_leaves(watch, tmp_path):
    called = []
    with watch.watching(tmp_path, lambda: called.append(1)):
        with watch.watching(tmp_path, lambda: called.append(2)):
            (tmp_path / "x").touch()
            delivered(watch)
            assert set(called) == {1, 2}
        called.clear()
        (tmp_path / "y").touch()
        delivered(watch)
        assert set(called) == {1}
    assert watch._called == {}


def test_a_missing_folder_is_an_error_and_leaves_nothing(watch, tmp_path):
    with pytest.raises(FileNotFoundError), watch.watching(tmp_path / "none", list):
        pytest.fail("it was watched")
    assert watch._called == {}


def test_a_folder_that_goes_away_while_it_is_watched_is_harmless(watch, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    with watch.watching(folder, list):
        folder.rmdir()
        watch.deliver()
    assert watch._called == {}


def test_threads_may_come_and_go(watch, tmp_path):
    def come_and_go():
        for _ in range(200):
            with watch.watching(tmp_path, list):
                pass

    threads = [threading.Thread(target=come_and_go) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    watch.deliver()
    assert watch._called == {}
