"""Artifacts that a worker on another host sends to the service."""

import hashlib

import pytest

from core.errors import GradientError, SpecInvalid
from core.storage.artifacts.manifests import ArtifactFile, Manifest, write_manifest
from core.storage.artifacts.received import Piece, pack
from core.storage.artifacts.store import DirectoryStore

JOB = "jaaaaaaaaaaaaa"
CONTENT = b"0123456789"


@pytest.fixture
def store(tmp_path):
    return DirectoryStore(tmp_path / "artifacts")


@pytest.fixture
def received(store):
    return store.receiver(JOB, 1)


@pytest.fixture
def list_of(tmp_path):
    def list_of(*files, state="complete"):
        path = tmp_path / "list"
        write_manifest(path, Manifest(state, len(files), sum(one.size for one in files), ()), files, durable=False)
        return path.read_bytes()

    return list_of


def entry(path, content=CONTENT, *, mtime_ms=1000, hashed=True):
    return ArtifactFile(path, len(content), mtime_ms, hashlib.sha256(content).hexdigest() if hashed else None)


def read(store, path):
    with store.open(JOB, 1, path).file as file:
        return file.read()


def test_a_file_arrives_in_pieces_of_which_one_is_repeated_and_one_too_early(store, received, list_of):
    file = entry("a/b")
    assert received.take_list(list_of(file), final=True) == {"a/b": 0}
    received.add(pack([Piece(file, 0, CONTENT[:4])]))
    received.add(pack([Piece(file, 8, CONTENT[8:])]))
    assert received.take_list(list_of(file), final=True) == {"a/b": 4}
    received.add(pack([Piece(file, 2, CONTENT[2:8])]))
    assert store.list(JOB, 1).state == "none", "nothing is listed before all is there"
    received.add(pack([Piece(file, 8, CONTENT[8:])]))
    assert received.take_list(list_of(file), final=True) == {}
    assert (store.list(JOB, 1).state, read(store, "a/b")) == ("complete", CONTENT)
    assert received.take_list(list_of(), final=True) == {}, "a closed attempt stays as it is"
    received.add(pack([Piece(entry("a/b", b"x"), 0, b"x")]))
    assert read(store, "a/b") == CONTENT


def test_a_file_that_was_damaged_on_its_way_is_sent_again(store, received, list_of):
    file = entry("a")
    received.take_list(list_of(file), final=True)
    received.add(pack([Piece(file, 0, b"damaged!!!")]))
    assert received.take_list(list_of(file), final=True) == {"a": 0}
    received.add(pack([Piece(file, 0, CONTENT)]))
    assert received.take_list(list_of(file), final=True) == {}
    assert read(store, "a") == CONTENT


def test_lists_while_the_job_runs_follow_its_folder(store, received, list_of):
    first, other = entry("d/one", hashed=False), entry("two", b"2", hashed=False)
    received.take_list(list_of(first, other), final=False)
    received.add(pack([Piece(first, 0, CONTENT)]))
    assert received.take_list(list_of(first, other), final=False) == {"two": 0}
    page = store.list(JOB, 1)
    assert ([one.path for one in page.files], page.total_files) == (["d/one"], 1), "what has not arrived is not listed"
    changed = entry("two", b"3", mtime_ms=2000, hashed=False)
    received.add(pack([Piece(other, 0, b"2")]))
    assert received.take_list(list_of(changed), final=False) == {"two": 0}
    with pytest.raises(GradientError):
        store.open(JOB, 1, "d/one")
    received.add(pack([Piece(changed, 0, b"3")]))
    assert received.take_list(list_of(entry("two", b"3", mtime_ms=2000)), final=True) == {}
    assert read(store, "two") == b"3"


@pytest.mark.parametrize("path", ["../../out", "/etc/passwd", "a/../../b", ""])
def test_no_file_lands_outside_its_folder(received, tmp_path, path):
    with pytest.raises(GradientError):
        received.add(pack([Piece(entry(path), 0, CONTENT)]))
    assert [one for one in tmp_path.rglob("*") if one.is_file() and one.read_bytes() == CONTENT] == []


@pytest.mark.parametrize(
    "body",
    [b"no line", b"[]\n", b"{}\n", pack([Piece(entry("a"), 5, CONTENT)]), pack([Piece(entry("a"), -1, CONTENT)])],
)
def test_malformed_pieces_are_refused(received, body):
    with pytest.raises(SpecInvalid):
        received.add(body)


@pytest.mark.parametrize("data", [b"", b"x", b"{}\n", b'{"format": 1}\n[]\n'])
def test_malformed_lists_are_refused(received, data):
    with pytest.raises(SpecInvalid):
        received.take_list(data, final=True)
