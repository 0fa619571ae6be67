"""Workspaces stored as manifests: put together again, limited like archives, and never from files of others."""

import hashlib
import io
import json
import os
import tarfile
import threading
import time

import pytest

from core.errors import WorkspaceInvalid, WorkspaceNotFound
from core.storage.workspaces import WorkspaceStore, packs
from core.storage.workspaces.limits import WorkspaceLimits

LIMITS = WorkspaceLimits()


def digest(content):
    return hashlib.sha256(content).hexdigest()


def manifest_of(files, folders=(), links=()):
    """Return a manifest as JSON text; values of files are contents, or a mode and contents."""
    listed = []
    for path, given in sorted(files.items()):
        mode, content = given if isinstance(given, tuple) else (0o644, given)
        listed.append([path, mode, len(content), digest(content)])
    return json.dumps({"files": listed, "folders": list(folders), "links": list(links)}).encode()


def pack_of(*contents, names=None):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for content, name in zip(contents, names or map(digest, contents), strict=True):
            header = tarfile.TarInfo(name)
            header.size = len(content)
            packed.addfile(header, io.BytesIO(content))
    return io.BytesIO(buffer.getvalue())


@pytest.fixture
def store(tmp_path):
    return WorkspaceStore(tmp_path / "workspaces")


@pytest.fixture
def add(store):
    """Store files as a client does, sending what is missing; return the manifest's digest."""

    def store_files(files, base=None, **more):
        data = manifest_of(files, **more)
        missing = set(store.find_missing(data, base=base, limits=LIMITS))
        contents = {content[1] if isinstance(content, tuple) else content for content in files.values()}
        sent = sorted(content for content in contents if digest(content) in missing)
        pack = pack_of(*sent) if sent else None
        return store.add_manifest(data, pack, LIMITS, expected_sha256=digest(data), base=base).sha256

    return store_files


def unpacked(store, sha256, target):
    store.extract(sha256, target, LIMITS)
    return {
        str(path.relative_to(target)): str(path.readlink()) if path.is_symlink() else path.read_bytes()
        for path in target.rglob("*")
        if path.is_symlink() or path.is_file()
    }


def kept(store):
    return sorted(str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file())


def test_a_workspace_is_put_together_with_modes_folders_and_links(store, add, tmp_path):
    files = {"run.sh": (0o755, b"echo"), "a/one": b"same", "a/two": b"same", "empty": b""}
    sha256 = add(files, folders=[["a", 0o750], ["bare", 0o700]], links=[["link", "a/one"]])
    stored = WorkspaceStore(store.root).stat(sha256)
    assert (stored.files, stored.unpacked_bytes) == (5, 12)
    target = tmp_path / "out"
    contents = {"run.sh": b"echo", "a/one": b"same", "a/two": b"same", "empty": b"", "link": "a/one"}
    assert unpacked(store, sha256, target) == contents
    modes = {name: (target / name).stat().st_mode & 0o777 for name in ("run.sh", "a", "bare", "a/one")}
    assert modes == {"run.sh": 0o755, "a": 0o750, "bare": 0o700, "a/one": 0o644}
    assert (target / "a/one").stat().st_ino != (target / "a/two").stat().st_ino, "the job may change one of them"
    assert (target / "a/one").stat().st_mtime == 315_532_800


def test_a_digest_alone_gives_no_file(store, add):
    secret = b"of somebody else"
    own = add({"a": b"mine"})
    other = add({"a": secret, "b": b"x" * 5000})
    data = manifest_of({"stolen": secret})
    for base in (None, own, digest(secret), "0" * 64):
        assert store.find_missing(data, base=base, limits=LIMITS) == [digest(secret)]
        with pytest.raises(WorkspaceNotFound, match="not stored here") as refused:
            store.add_manifest(data, None, LIMITS, expected_sha256=digest(data), base=base)
        assert refused.value.field == "contents"
    # Not even a file of an earlier version in the same pack: a base stands for the files that it names itself.
    later = add({"b": b"x" * 5000, "c": b"y"}, other)
    assert set(store.stat(other).packs) < set(store.stat(later).packs)
    data = manifest_of({"stolen": secret, "b": b"x" * 5000})
    assert store.find_missing(data, base=later, limits=LIMITS) == [digest(secret)]
    assert store.find_missing(data, base=other, limits=LIMITS) == []


SHA = digest(b"x")
FILE = ["a", 0o644, 1, SHA]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"files": [["../a", 0o644, 1, SHA]]}, "leaves the folder"),
        ({"files": [["/etc/passwd", 0o644, 1, SHA]]}, "absolute path"),
        ({"files": [["", 0o644, 1, SHA]]}, "without a name"),
        ({"files": [["a\0b", 0o644, 1, SHA]]}, "control character"),
        ({"files": [["a/" * 40 + "b", 0o644, 1, SHA]]}, "folders deep"),
        ({"files": [["n" * 256, 0o644, 1, SHA]]}, "longer than 255 bytes"),
        ({"files": [FILE, FILE]}, "twice"),
        ({"files": [FILE, ["a/b", 0o644, 1, SHA]]}, "is a file"),
        ({"files": [FILE], "folders": [["a", 0o755]]}, "both a file and a folder"),
        ({"files": [], "links": [["l", "../../etc"]]}, "leaves the folder"),
        ({"files": [], "links": [["l", "/etc"]]}, "absolute path"),
        ({"files": [], "links": [["l", "m"], ["m", "l"]]}, "loop"),
        ({"files": [["l/a", 0o644, 1, SHA]], "links": [["l", "."]]}, "both a symbolic link and a folder"),
        ({"files": [["a", 0o644, 2**40, SHA]]}, "unpacks to more than"),
        ({"files": [[f"f{number}", 0o644, 0, SHA] for number in range(101)]}, "more than 100 files"),
        ({"files": [FILE, ["b", 0o644, 2, SHA]]}, "sha256 of a file with another size"),
        ({"files": [["a", 0o4755, 1, SHA]]}, "files.0"),
        ({"files": [["a", 0o644, -1, SHA]]}, "files.0"),
        ({"files": [["a", 0o644, 1.5, SHA]]}, "files.0"),
        ({"files": [["a", 0o644, 1, "x"]]}, "files.0"),
        ({"files": [["a", 0o644, 1, SHA.upper()]]}, "files.0"),
        ({"files": [["a", 0o644, 1, SHA + "\n"]]}, "files.0"),
        ({"files": [["a", 0o644, 1]]}, "files.0"),
        ({"files": [["\udcff", 0o644, 1, SHA]]}, "JSON"),
        ({"files": "a"}, "files"),
        ({"files": [], "more": 1}, "more"),
        ({}, "files"),
        ([], "JSON text"),
    ],
)
def test_a_hostile_manifest_is_refused(store, fields, message):
    data = json.dumps(fields).encode()
    limits = WorkspaceLimits(max_files=100)
    with pytest.raises(WorkspaceInvalid, match=message):
        store.find_missing(data, base=None, limits=limits)
    with pytest.raises(WorkspaceInvalid, match=message):
        store.add_manifest(data, pack_of(b"x"), limits, expected_sha256=digest(data), base=None)
    assert kept(store) == []


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"[" * 100_000, b'{"files": ' + b"[" * 100_000])
def test_text_that_is_no_json_is_refused(store, data):
    with pytest.raises(WorkspaceInvalid, match="manifest"):
        store.find_missing(data, base=None, limits=LIMITS)


@pytest.mark.parametrize(
    ("pack", "message"),
    [
        (lambda: pack_of(b"y", names=[SHA]), "another sha256"),
        (lambda: pack_of(b"x", b"y"), "not named by a sha256 of the manifest"),
        (lambda: pack_of(b"x", b"x"), "twice"),
        (lambda: pack_of(b"x", names=["a"]), "named by its sha256"),
        (lambda: io.BytesIO(pack_of(b"x").getvalue()[:-9]), "cut short"),
        (lambda: io.BytesIO(pack_of(b"x").getvalue() + b"\0"), "damaged"),
        (lambda: io.BytesIO(pack_of(b"x").getvalue() * 2), "damaged"),
        (lambda: io.BytesIO(b"no archive"), "damaged"),
        (lambda: io.BytesIO(b""), "damaged"),
    ],
)
def test_wrong_contents_are_refused_and_leave_nothing(store, pack, message):
    data = manifest_of({"a": b"x"})
    with pytest.raises(WorkspaceInvalid, match=message):
        store.add_manifest(data, pack(), LIMITS, expected_sha256=digest(data), base=None)
    assert kept(store) == []


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, b"Z"])
def test_what_is_no_file_in_place_of_a_content_is_refused(store, kind):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        header = tarfile.TarInfo(SHA)
        header.type, header.linkname = kind, "/etc/passwd"
        packed.addfile(header)
    data = manifest_of({"a": b"x"})
    with pytest.raises(WorkspaceInvalid, match="no file named by its sha256"):
        store.add_manifest(data, io.BytesIO(buffer.getvalue()), LIMITS, expected_sha256=digest(data), base=None)


def test_a_pack_that_is_a_bomb_is_refused(store):
    zeros = bytes(50 * 1024**2)
    data = manifest_of({"a": zeros})
    with pytest.raises(WorkspaceInvalid, match="decompression bomb"):
        store.add_manifest(data, pack_of(zeros), LIMITS, expected_sha256=digest(data), base=None)
    assert kept(store) == []


def test_a_size_that_the_content_does_not_have_is_refused(store):
    data = json.dumps({"files": [["a", 0o644, 5, SHA]]}).encode()
    with pytest.raises(WorkspaceInvalid, match="another size"):
        store.add_manifest(data, pack_of(b"x"), LIMITS, expected_sha256=digest(data), base=None)


def test_a_manifest_damaged_in_transit_is_refused(store):
    with pytest.raises(WorkspaceInvalid, match="damaged in transit"):
        store.add_manifest(manifest_of({"a": b"x"}), pack_of(b"x"), LIMITS, expected_sha256="0" * 64, base=None)
    assert kept(store) == []


def test_a_workspace_without_its_pack_is_not_stored(store, add, tmp_path):
    sha256 = add({"a": b"x"})
    (pack,) = (store.root / "packs").glob("*[!n]")
    pack.write_bytes(b"cut")
    assert not store.has(sha256)
    with pytest.raises(WorkspaceNotFound):
        store.extract(sha256, tmp_path / "out", LIMITS)
    assert add({"a": b"x"}) == sha256
    assert unpacked(store, sha256, tmp_path / "out") == {"a": b"x"}


def test_a_damaged_pack_is_noticed_at_the_start_of_a_job(store, add, tmp_path):
    sha256 = add({"a": b"x" * 1000})
    (pack,) = (store.root / "packs").glob("*[!n]")
    other = pack_of(b"y" * 1000, names=[digest(b"x" * 1000)]).getvalue()
    pack.write_bytes(other[: pack.stat().st_size].ljust(pack.stat().st_size, b"\0"))
    with pytest.raises(WorkspaceInvalid):
        store.extract(sha256, tmp_path / "out", LIMITS)
    assert not (tmp_path / "out").exists()


def age(store, name, days=1):
    at = time.time() - days * 86_400
    os.utime(store.root / name, (at, at))


def collect(store, *discarded):
    """Collect as `core.storage.prune` does, with workspaces that no job needs."""
    since = time.time() - 600
    for sha256 in discarded:
        store.discard(sha256, unused_since=since)
    for pack in store.unused_packs(unused_since=since):
        store.discard_pack(pack.sha256, unused_since=since)


def test_packs_are_collected_with_the_last_workspace_that_names_them(store, add, tmp_path):
    files = {f"f{number}": bytes([number]) * 1000 for number in range(10)}
    first = add(files)
    second = add(files | {"f0": b"changed"}, first)
    for pack in (store.root / "packs").iterdir():
        age(store, f"packs/{pack.name}")
    for suffix in ("", ".json"):
        age(store, f"{first[:2]}/{first}{suffix}")
    collect(store, first)
    assert not store.has(first)
    assert unpacked(store, second, tmp_path / "out")["f5"] == files["f5"]
    for name in kept(store):
        age(store, name)
    collect(store, second)
    assert kept(store) == []


def test_a_dry_run_counts_packs_of_what_would_be_discarded(store, add):
    sha256 = add({"a": b"x"})
    for name in kept(store):
        age(store, name)
    since = time.time() - 600
    assert store.unused_packs(unused_since=since) == []
    assert len(store.unused_packs(unused_since=since, without={sha256})) == 1


def test_a_collection_between_question_and_upload_loses_nothing(store, add, tmp_path):
    files = {f"f{number}": bytes([number]) * 1000 for number in range(10)}
    base = add(files)
    for name in kept(store):
        age(store, name)
    changed = files | {"f0": b"changed"}
    data = manifest_of(changed)
    assert store.find_missing(data, base=base, limits=LIMITS) == [digest(b"changed")]
    collect(store, base)
    with pytest.raises(WorkspaceNotFound, match="contents are not stored"):
        store.add_manifest(data, pack_of(b"changed"), LIMITS, expected_sha256=digest(data), base=base)
    assert unpacked(store, add(changed), tmp_path / "out") == changed


def test_an_upload_protects_the_packs_of_its_base(store, add, tmp_path):
    files = {f"f{number}": bytes([number]) * 1000 for number in range(10)}
    base = add(files)
    for name in kept(store):
        age(store, name)
    since = time.time() - 600
    doomed = store.unused_packs(unused_since=since, without={base})
    sha256 = add(files | {"f0": b"changed"}, base)  # between the listing and the deletion
    assert [store.discard_pack(pack.sha256, unused_since=since) for pack in doomed] == [False]
    store.discard(base, unused_since=since)
    assert unpacked(store, sha256, tmp_path / "out")["f5"] == files["f5"]


def test_two_clients_at_once_store_one_workspace(store, tmp_path):
    files = {f"f{number}": bytes([number]) * 1000 for number in range(50)}
    data = manifest_of(files)
    stored, barrier = [], threading.Barrier(4)

    def upload(order):
        barrier.wait()
        pack = pack_of(*(sorted(files.values(), reverse=order % 2)))
        stored.append(store.add_manifest(data, pack, LIMITS, expected_sha256=digest(data), base=None))

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {one.sha256 for one in stored} == {digest(data)}
    assert unpacked(store, digest(data), tmp_path / "out") == files


def test_a_workspace_never_has_too_many_packs(store, add, tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "MAX_PACKS", 5)
    files = {f"f{number}": bytes([number]) * 100 for number in range(40)}
    base, numbers = add(files), []
    for number in range(20):
        files[f"f{number}"] = b"changed" + bytes([number])
        base = add(files, base)
        numbers.append(len(store.stat(base).packs))
    assert max(numbers) == 5
    assert unpacked(store, base, tmp_path / "out") == files
