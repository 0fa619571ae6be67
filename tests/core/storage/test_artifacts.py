import errno
import hashlib
import os
from contextlib import suppress

import pytest

from core.errors import JobNotFound
from core.storage.artifacts import folder_mirror, hashing
from core.storage.artifacts.store import ArtifactLimits, DirectoryStore

JOB = "jabc123"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "attempt" / "artifacts"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def directory(tmp_path):
    return DirectoryStore(tmp_path / "store")


@pytest.fixture(params=["directory", "gcs", "s3", pytest.param("azure", marks=pytest.mark.slow)])
def store(request, tmp_path):
    """Every store there is; what a test asks of it, it asks of all."""
    if request.param == "directory":
        return request.getfixturevalue("directory")
    return request.getfixturevalue(request.param).make_store(tmp_path)


@pytest.fixture
def no_links(monkeypatch):
    def refused(*_args, **_options):
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(folder_mirror.os, "link", refused)


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def kept(store, attempt=1):
    """Everything in the store: path to content."""
    found = {}
    for file in store.walk(JOB, attempt):
        opened = store.open(JOB, attempt, file.path)
        with opened.file as stream:
            found[file.path] = stream.read()
        assert opened.size == len(found[file.path])
        assert opened.sha256 == file.sha256
    return found


def assert_true(store, manifest, attempt=1):
    """The manifest names exactly what is there, with its hash."""
    contents = kept(store, attempt)
    for file in store.walk(JOB, attempt):
        assert file.sha256 == hashlib.sha256(contents[file.path]).hexdigest()
        assert file.size == len(contents[file.path])
    assert (manifest.files, manifest.bytes) == (len(contents), sum(map(len, contents.values())))


def test_the_last_attempt_is_found_complete_or_not(store, source):
    assert store.last_attempt(JOB) == 0
    write(source / "model", b"weights")
    store.close(JOB, 9, source)
    assert store.last_attempt(JOB) == 9
    store.sync(JOB, 10, source)
    assert store.last_attempt(JOB) == 10
    assert store.last_attempt("jabc124") == 0


@pytest.mark.parametrize("copied", [False, True])
def test_every_change_is_followed(store, source, copied, request):
    if copied:
        request.getfixturevalue("no_links")
    for name in ("grows", "replaced", "deleted", "becomes_folder", "folder/becomes_file", "gone/a", "gone/b/c"):
        write(source / name, b"old")
    store.sync(JOB, 1, source)
    assert len(kept(store)) == 7
    with (source / "grows").open("ab") as stream:
        stream.write(b" and new")
    write(source / "other", b"new")
    (source / "other").rename(source / "replaced")
    (source / "deleted").unlink()
    (source / "becomes_folder").unlink()
    write(source / "becomes_folder" / "inner", b"i")
    (source / "folder" / "becomes_file").unlink()
    (source / "folder").rmdir()
    write(source / "folder", b"f")
    (source / "gone" / "a").unlink()
    (source / "gone" / "b" / "c").unlink()
    expected = {"grows": b"old and new", "replaced": b"new", "becomes_folder/inner": b"i", "folder": b"f"}
    store.sync(JOB, 1, source)
    assert kept(store) == expected
    assert_true(store, store.close(JOB, 1, source))
    assert kept(store) == expected


@pytest.mark.usefixtures("no_links")
def test_a_changed_file_of_the_same_size_is_copied_where_clocks_differ(store, source, monkeypatch):
    """The store's clock is ahead, or the job's was set back: the older copy seems to be younger than the change."""
    write(source / "model.bin", b"old")
    store.sync(JOB, 1, source)
    monkeypatch.setattr(folder_mirror, "SETTLED_NS", -(10**12))
    write(source / "model.bin", b"new")
    os.utime(source / "model.bin", (0, 1_600_000_000))
    assert_true(store, store.close(JOB, 1, source))
    assert kept(store) == {"model.bin": b"new"}


def test_closing_again_gives_the_same_and_nothing_enters_afterwards(store, source):
    write(source / "a", b"alpha")
    manifest = store.close(JOB, 1, source)
    write(source / "late", b"too late")
    (source / "a").unlink()
    assert store.close(JOB, 1, source) == manifest
    assert store.sync(JOB, 1, source).files == 1
    assert kept(store) == {"a": b"alpha"}


def test_an_attempt_without_files_takes_nothing_on_disk(directory, source, tmp_path):
    synced = directory.sync(JOB, 1, source)
    assert (synced.files, synced.bytes, synced.skipped) == (0, 0, ())
    directory.close(JOB, 1, source)
    assert not (tmp_path / "store").exists()
    source.rmdir()
    directory.sync(JOB, 1, source)  # by a worker that was frozen meanwhile
    assert not (tmp_path / "store").exists()
    assert directory.list(JOB, 1).state == "none"


def test_attempts_are_kept_apart_and_removed_together(store, source, tmp_path):
    write(source / "a", b"one")
    store.close(JOB, 1, source)
    (source / "a").unlink()
    write(source / "a", b"two")
    store.close(JOB, 2, source)
    assert (kept(store, 1), kept(store, 2)) == ({"a": b"one"}, {"a": b"two"})
    store.remove(JOB)
    store.remove(JOB)
    assert store.list(JOB, 1).state == "none"
    assert not list((tmp_path / "store").rglob("a"))


@pytest.mark.parametrize(("changes", "state"), [(1, "complete"), (1_000, "partial")])
def test_a_file_that_changes_while_it_is_hashed_is_true_or_left_out(store, source, monkeypatch, changes, state):
    write(source / "busy", b"x")
    write(source / "calm", b"y")
    inode, real, left = (source / "busy").stat().st_ino, os.readv, changes

    def disturbed(descriptor, buffers):
        nonlocal left
        if left and os.fstat(descriptor).st_ino == inode:
            left -= 1
            with (source / "busy").open("ab") as stream:
                stream.write(b"more")
        return real(descriptor, buffers)

    monkeypatch.setattr(hashing.os, "readv", disturbed)
    manifest = store.close(JOB, 1, source)
    assert manifest.state == state
    assert ("busy" in kept(store)) == (state == "complete")
    assert (("busy", "kept changing while it was read") in manifest.skipped) == (state == "partial")
    assert_true(store, manifest)


@pytest.mark.parametrize("point", ["link", "rename", "mkdir", "fsync", "replace"])
def test_killed_between_any_steps_the_next_close_completes(store, source, monkeypatch, point):
    for number in range(4):
        write(source / f"d{number}" / "file", b"%d" % number)
    expected = {f"d{number}/file": b"%d" % number for number in range(4)}
    real, left = getattr(os, point), 0

    def killed(*arguments, **options):
        nonlocal left
        left -= 1
        if not left:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    monkeypatch.setattr(os, point, killed)
    for steps in range(1, 6):
        left = steps
        with suppress(KeyboardInterrupt):
            store.close(JOB, 1, source)
        left = 0  # only closing is killed
        assert store.list(JOB, 1).state != "complete" or kept(store) == expected
    monkeypatch.undo()
    assert_true(store, store.close(JOB, 1, source))
    assert kept(store) == expected


def test_left_overs_of_a_killed_sync_do_no_harm(store, source, tmp_path):
    directory = tmp_path / "store" / JOB[:3] / JOB / "1"
    write(directory / "incoming" / "new", b"half")
    write(directory / "files" / "stale" / "file", b"stale")
    write(directory / "manifest.jsonl.new", b"{half")
    write(source / "a", b"alpha")
    assert_true(store, store.close(JOB, 1, source))
    assert kept(store) == {"a": b"alpha"}
    assert not (directory / "incoming").exists() or not isinstance(store, DirectoryStore)


def test_a_file_that_a_killed_sync_had_just_linked_is_kept(directory, source, tmp_path):
    write(source / "model.bin", b"old")
    directory.sync(JOB, 1, source)
    write(source / "other", b"new")
    (source / "other").rename(source / "model.bin")
    left = tmp_path / "store" / JOB[:3] / JOB / "1" / "incoming.killed"
    left.mkdir()
    os.link(source / "model.bin", left / "new")
    assert_true(directory, directory.close(JOB, 1, source))
    assert kept(directory) == {"model.bin": b"new"}


@pytest.mark.usefixtures("no_links")
def test_a_full_disk_is_an_error_and_can_be_tried_again(store, source, monkeypatch):
    write(source / "a", b"alpha")

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(folder_mirror.os, "write", full)
        with pytest.raises(OSError, match="No space"):
            store.close(JOB, 1, source)
    assert store.close(JOB, 1, source).state == "complete"
    assert kept(store) == {"a": b"alpha"}


def test_pages_by_prefix_and_from_any_key(store, source):
    for name in ("a/1", "a/2", "ab", "b/1", "c"):
        write(source / name, b"x")
    store.close(JOB, 1, source)

    def paths(**options):
        return [file.path for file in store.list(JOB, 1, **options).files]

    assert paths(prefix="a/") == ["a/1", "a/2"]
    assert paths(prefix="a") == ["a/1", "a/2", "ab"]
    assert paths(prefix="a", after="a/1", limit=1) == ["a/2"]
    assert paths(after="a/1x") == ["a/2", "ab", "b/1", "c"]
    assert paths(prefix="zzz") == []
    assert paths(after="zzz") == []
    assert paths(prefix="b", after="a") == ["b/1"]


def test_limits_leave_out_what_is_too_much_and_say_so(tmp_path, source):
    store = DirectoryStore(tmp_path / "small", limits=ArtifactLimits(max_files=10, max_bytes=5))
    for name, size in (("a", 3), ("b", 3), ("c", 2)):
        write(source / name, b"x" * size)
    manifest = store.close(JOB, 1, source)
    assert (manifest.state, manifest.bytes) == ("partial", 5)
    assert [skipped.path for skipped in manifest.skipped] == ["b"]
    for number in range(20):
        write(source / f"n{number}", b"")
    manifest = store.close(JOB, 2, source)
    assert manifest.files <= 10
    assert any("13 files are over the limit of 10 files" in skipped.why for skipped in manifest.skipped)


def test_job_ids_that_lead_elsewhere_are_refused(store, source):
    for bad in ("..", "a/b", "", "../../etc"):
        with pytest.raises(JobNotFound):
            store.sync(bad, 1, source)
        with pytest.raises(JobNotFound):
            store.remove(bad)


def test_files_of_a_closed_attempt_are_discarded_by_name(store, source, tmp_path):
    for name in ("a.txt", "deep/b.txt", "c\\d.txt", "e.bin"):
        write(source / name, name.encode())
    store.close(JOB, 1, source)
    assert store.discard(JOB, 1, lambda path: path.endswith(".txt")) == 3
    assert kept(store) == {"e.bin": b"e.bin"}
    page = store.list(JOB, 1)
    assert (page.state, page.total_files, page.total_bytes) == ("complete", 1, 5)
    assert [path.name for path in (tmp_path / "store").rglob("*.txt")] == []
    assert store.discard(JOB, 1, lambda path: path.endswith(".txt")) == 0
    assert store.close(JOB, 1, source).files == 1  # what is gone does not come back


def test_nothing_of_an_open_attempt_is_discarded(store, source):
    write(source / "a.txt", b"a")
    store.sync(JOB, 1, source)
    assert store.discard(JOB, 1, lambda _: True) == 0
    assert store.discard(JOB, 2, lambda _: True) == 0
    assert kept(store) == {"a.txt": b"a"}
