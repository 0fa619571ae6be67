import os
import socket
import threading

import pytest

from core.errors import ArtifactNotFound
from core.storage.artifacts import folder_mirror
from core.storage.artifacts.paths import MAX_DEPTH
from core.storage.artifacts.scan import ArtifactLimits
from core.storage.artifacts.store import DirectoryStore

JOB = "jabc123"
SECRET = b"root:x:0:0 secret"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "attempt" / "artifacts"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "passwd").write_bytes(SECRET)
    return folder


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "store")


def contents(tmp_path):
    """Return the content of every regular file in the store, which must hold no link."""
    found = []
    for path in (tmp_path / "store").rglob("*"):
        assert not path.is_symlink()
        if path.is_file():
            found.append(path.read_bytes())
    return found


def read(store, path):
    with store.open(JOB, 1, path).file as stream:
        return stream.read()


def test_links_fifos_and_sockets_are_recorded_not_read(store, source, outside, tmp_path):
    (source / "link").symlink_to("/etc/passwd")
    (source / "folder_link").symlink_to(outside)
    (source / "dangling").symlink_to("nowhere")
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(source / "socket"))
        (source / "good").write_bytes(b"good")
        manifest = store.close(JOB, 1, source)
    assert (manifest.state, manifest.files) == ("complete", 1)
    assert dict(manifest.skipped) == {
        "link": "a symbolic link to a target outside the folder is not followed",
        "folder_link": "a symbolic link to a target outside the folder is not followed",
        "dangling": "a symbolic link to something that does not exist or is not kept",
        "fifo": "a fifo is not a file",
        "socket": "a socket is not a file",
    }
    assert SECRET not in contents(tmp_path)
    assert store.list(JOB, 1).skipped == manifest.skipped


def test_a_hard_link_to_an_outside_file_is_not_taken(store, source, outside, tmp_path):
    os.link(outside / "passwd", source / "one")
    os.link(outside / "passwd", source / "two")
    for _ in range(3):
        result = store.sync(JOB, 1, source)
        assert result.files == 0
    assert [skipped.path for skipped in store.close(JOB, 1, source).skipped] == ["one", "two"]
    assert SECRET not in contents(tmp_path)


def test_a_folder_replaced_by_a_link_keeps_what_was_stored(store, source, outside, tmp_path):
    (source / "model").write_bytes(b"weights")
    store.sync(JOB, 1, source)
    source.rename(source.with_name("moved"))
    source.symlink_to(outside)
    manifest = store.close(JOB, 1, source)
    assert (manifest.state, manifest.files) == ("partial", 1)
    assert SECRET not in contents(tmp_path)


@pytest.mark.parametrize("swap", ["link", "folder_link", "hard_link", "fifo", "gone"])
@pytest.mark.parametrize("copied", [False, True])
def test_a_name_swapped_at_the_last_moment_is_caught(store, source, outside, tmp_path, monkeypatch, swap, copied):
    (source / "sub").mkdir()
    victim = source / "sub" / "passwd"
    victim.write_bytes(b"mine")
    real = os.link

    def swapping(*arguments, **options):
        if arguments[1] == "new" and victim.exists() and victim.read_bytes() == b"mine":
            if swap == "folder_link":
                victim.parent.rename(source / "moved")
                victim.parent.symlink_to(outside)
            else:
                victim.unlink()
                {
                    "link": lambda: victim.symlink_to(outside / "passwd"),
                    "hard_link": lambda: real(outside / "passwd", victim),
                    "fifo": lambda: os.mkfifo(victim),
                    "gone": lambda: None,
                }[swap]()
        if copied:
            raise OSError(18, "Invalid cross-device link")
        return real(*arguments, **options)

    monkeypatch.setattr(folder_mirror.os, "link", swapping)
    manifest = store.close(JOB, 1, source)
    assert SECRET not in contents(tmp_path)
    assert all(read(store, file.path) == b"mine" for file in store.walk(JOB, 1))
    assert manifest.files == (1 if swap == "folder_link" else 0)


def test_a_folder_swapped_for_a_link_in_a_race_is_never_followed(store, source, outside, tmp_path):
    real, hidden = source / "sub", source / "hidden"
    real.mkdir()
    (real / "passwd").write_bytes(b"mine")
    ended = threading.Event()

    def race():
        while not ended.is_set():
            real.rename(hidden)
            real.symlink_to(outside)
            real.unlink()
            hidden.rename(real)

    racing = threading.Thread(target=race)
    racing.start()
    try:
        for _ in range(int(os.environ.get("GRADIENT_TEST_RACES", "200"))):
            store.sync(JOB, 1, source)
            assert SECRET not in contents(tmp_path)
    finally:
        ended.set()
        racing.join()
    store.close(JOB, 1, source)
    assert read(store, "sub/passwd") == b"mine"


@pytest.mark.parametrize(
    "name",
    [
        "emoji 🎉 and ünïcode",
        "new\nline\ttab\x01",
        "x" * 255,
        "é" * 127,
        " leading and trailing ",
        "-rf",
        "100%",
        "a%41",
        "back\\slash",
        "..hidden",
        b"not utf-8 \xff\xfe".decode("utf-8", "surrogateescape"),
        '"quoted" & <b>',
    ],
)
def test_any_name_is_kept_listed_and_opened(store, source, name):
    (source / name).write_bytes(b"data")
    manifest = store.close(JOB, 1, source)
    assert (manifest.state, manifest.files) == ("complete", 1)
    (file,) = store.list(JOB, 1).files
    file.path.encode()
    assert "\\" not in file.path
    assert read(store, file.path) == b"data"


def test_names_that_would_look_alike_stay_apart(store, source):
    names = [b"a\xff".decode("utf-8", "surrogateescape"), "a%FF", "a\ufffd", "a\\FF", "a%5CFF", "A", "a"]
    for number, name in enumerate(names):
        (source / name).write_bytes(b"%d" % number)
    store.close(JOB, 1, source)
    found = {read(store, file.path) for file in store.walk(JOB, 1)}
    assert found == {b"%d" % number for number in range(len(names))}


def test_folders_nested_too_deep_are_left_out_and_long_paths_work(store, source):
    parts = ["d" * 200] * (MAX_DEPTH + 2)
    folder = os.open(source, os.O_RDONLY)
    for depth, part in enumerate(parts):
        with os.fdopen(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder), "w") as stream:
            stream.write(str(depth))
        os.mkdir(part, dir_fd=folder)
        deeper = os.open(part, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = deeper
    os.close(folder)
    manifest = store.close(JOB, 1, source)
    assert (manifest.state, manifest.files) == ("partial", MAX_DEPTH + 1)
    deepest = "/".join([*parts[:MAX_DEPTH], "file"])
    assert read(store, deepest) == str(MAX_DEPTH).encode()
    store.remove(JOB)
    assert store.list(JOB, 1).state == "none"


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/etc/passwd",
        "../manifest.jsonl",
        "a/../../manifest.jsonl",
        "./a",
        "a//b",
        "a/",
        "a\0b",
        "..\\..\\x",
        "%2E%2E/manifest.jsonl",
        "a%2Fb",
        "%61",
        "\udcff",
        "x" * 256,
        "/".join("d" * 300),
        "missing",
        "a",
        "a/b/c",
    ],
)
def test_paths_that_are_no_artifacts_are_not_found(store, source, path):
    (source / "a").mkdir()
    (source / "a" / "b").write_bytes(b"x")
    store.close(JOB, 1, source)
    with pytest.raises(ArtifactNotFound):
        store.open(JOB, 1, path)


def test_a_link_in_the_store_itself_is_not_followed(store, source, outside, tmp_path):
    (source / "sub").mkdir()
    (source / "sub" / "passwd").write_bytes(b"mine")
    store.close(JOB, 1, source)
    stored = tmp_path / "store" / JOB[:3] / JOB / "1" / "files" / "sub"
    (stored / "passwd").unlink()
    (stored / "passwd").symlink_to(outside / "passwd")
    with pytest.raises(ArtifactNotFound):
        store.open(JOB, 1, "sub/passwd")
    (stored / "passwd").unlink()
    stored.rmdir()
    stored.symlink_to(outside)
    with pytest.raises(ArtifactNotFound):
        store.open(JOB, 1, "sub/passwd")


@pytest.mark.parametrize("make", ["mkdir", "mkfifo", "link", "file"])
def test_countless_names_are_not_all_looked_at(tmp_path, source, make):
    """A job makes millions of names in a minute, of kinds too that count as no files; each copy looked at them all."""
    store = DirectoryStore(tmp_path / "store", limits=ArtifactLimits(max_files=5))
    (source / "many").mkdir()
    for number in range(200):
        path = source / "many" / f"{number}"
        if make == "link":
            path.symlink_to("nowhere")
        elif make == "file":
            path.touch()
        else:
            getattr(os, make)(path)
    manifest = store.close(JOB, 1, source)
    assert manifest.state == "partial"
    assert "the folder has more than 50 names; the rest is left out" in [skipped.why for skipped in manifest.skipped]
    assert len(manifest.skipped) <= 51
