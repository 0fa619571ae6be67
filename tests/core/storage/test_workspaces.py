import hashlib
import io
import json
import os
import threading
import time
import zipfile
from pathlib import Path

import pytest

from core.errors import WorkspaceInvalid
from core.storage.workspaces import WorkspaceStore
from core.storage.workspaces.archives import convert
from core.storage.workspaces.limits import WorkspaceLimits

LIMITS = WorkspaceLimits()


def archive(files):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        for name, content in files.items():
            packed.writestr(zipfile.ZipInfo(name), content)
    return buffer.getvalue()


DATA = archive({"main.py": b"print()", "a/b": b"x" * 100})
FILES = [
    [name, 0o600, len(content), hashlib.sha256(content).hexdigest()]
    for name, content in (("a/b", b"x" * 100), ("main.py", b"print()"))
]
MANIFEST = json.dumps({"files": FILES, "folders": [], "links": [], "times": [315_532_800_000] * 2}).replace(" ", "")
SHA = hashlib.sha256(MANIFEST.encode()).hexdigest()


@pytest.fixture
def store(tmp_path):
    return WorkspaceStore(tmp_path / "workspaces")


def kept(store):
    """Return the files of the store, without packs."""
    files = [str(path.relative_to(store.root)) for path in store.root.rglob("*") if path.is_file()]
    return sorted(name for name in files if not name.startswith("packs/"))


def test_the_same_content_from_many_senders_at_once(store):
    senders = 8
    barrier = threading.Barrier(senders)

    class Together(io.BytesIO):
        def read(self, size=-1):
            data = super().read(size)
            if not data:
                barrier.wait(timeout=60)
            return data

    found = []
    threads = [threading.Thread(target=lambda: found.append(store.add(Together(DATA), LIMITS))) for _ in range(senders)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [store.stat(SHA)] * senders
    assert kept(store) == [f"{SHA[:2]}/{SHA}", f"{SHA[:2]}/{SHA}.json"]


@pytest.mark.parametrize("sha", ["", "ab", "../../etc/passwd", SHA.upper(), SHA + "\n", SHA[:-1] + "g", "0" * 65])
def test_only_digests_name_workspaces(store, sha):
    for use in (store.has, store.path, store.stat, store.mark_used):
        with pytest.raises(WorkspaceInvalid, match="64 lower-case hexadecimal") as error:
            use(sha)
        assert error.value.field == "workspaceSha256"
    with pytest.raises(WorkspaceInvalid, match="64 lower-case hexadecimal"):
        store.add(io.BytesIO(DATA), LIMITS, expected_sha256=sha)


@pytest.mark.parametrize("damage", ["no facts", "half the facts", "no manifest", "half the manifest"])
def test_what_a_crash_left_half_stored_is_healed_by_the_next_upload(store, damage):
    stored = store.add(io.BytesIO(DATA), LIMITS)
    path = store.path(SHA)
    victim = path.with_name(f"{SHA}.json") if "facts" in damage else path
    if damage.startswith("no"):
        victim.unlink()
    else:
        os.truncate(victim, victim.stat().st_size // 2)
    assert store.stat(SHA) is None
    assert not store.has(SHA)
    assert store.add(io.BytesIO(DATA), LIMITS) == stored
    assert store.path(SHA).read_text() == MANIFEST


def test_sweep_removes_dead_uploads_only(store):
    assert store.sweep_temporary(0) == 0
    store.add(io.BytesIO(DATA), LIMITS)
    dead, alive = store.root / "incoming/dead", store.root / "incoming/alive"
    for upload in (dead, alive):
        upload.write_bytes(b"half an upload")
    an_hour_ago = time.time() - 3600
    os.utime(dead, (an_hour_ago, an_hour_ago))
    assert store.sweep_temporary(older_than_s=1800) == 1
    assert not dead.exists()
    assert alive.exists()
    assert store.has(SHA)


def test_a_workspace_is_discarded_only_if_nobody_used_it_since(store):
    store.add(io.BytesIO(DATA), LIMITS)
    long_ago = time.time() - 3600
    os.utime(store.path(SHA), (long_ago, long_ago))
    (found,) = store.stored()
    assert (found.sha256, found.size, round(found.used_at)) == (SHA, len(MANIFEST), round(long_ago))
    assert not store.discard(SHA, unused_since=long_ago - 1)
    assert store.mark_used(SHA)
    assert not store.discard(SHA, unused_since=long_ago + 1)
    assert store.has(SHA)
    os.utime(store.path(SHA), (long_ago, long_ago))
    store.add(io.BytesIO(DATA), LIMITS)
    assert not store.discard(SHA, unused_since=long_ago + 1), "sent again is used again"
    assert store.discard(SHA, unused_since=time.time() + 1)
    assert kept(store) == []
    assert list(store.stored()) == []
    assert not store.mark_used(SHA)
    assert not store.discard(SHA, unused_since=time.time() + 1)


def test_a_pack_counts_as_used_when_the_check_of_its_archive_ends(store, monkeypatch):
    def slow_convert(upload, pack, limits):
        converted = convert(upload, pack, limits)
        os.utime(pack.name, (1, 1))
        return converted

    monkeypatch.setattr("core.storage.workspaces.store.convert", slow_convert)
    store.add(io.BytesIO(DATA), LIMITS)
    assert store.unused_packs(unused_since=time.time() - 600, without={SHA}) == []


def test_a_workspace_that_is_used_while_it_is_discarded_is_put_back(store, monkeypatch):
    stored = store.add(io.BytesIO(DATA), LIMITS)
    long_ago = time.time() - 3600
    os.utime(store.path(SHA), (long_ago, long_ago))
    rename = Path.rename

    def used_just_before(path, target):
        if path == store.path(SHA):
            assert store.mark_used(SHA)
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", used_just_before)
    assert not store.discard(SHA, unused_since=long_ago + 1)
    assert store.stat(SHA) == stored
    assert kept(store) == [f"{SHA[:2]}/{SHA}", f"{SHA[:2]}/{SHA}.json"]


def test_an_upload_of_the_same_while_it_is_discarded_is_whole(store, monkeypatch):
    store.add(io.BytesIO(DATA), LIMITS)
    facts = store.path(SHA).with_name(f"{SHA}.json")
    long_ago = time.time() - 3600
    for path in (store.path(SHA), facts):
        os.utime(path, (long_ago, long_ago))
    unlink = Path.unlink

    def sent_just_before(path, **options):
        unlink(path, **options)
        if path.name.endswith(f"-{SHA}"):
            store.add(io.BytesIO(DATA), LIMITS)

    monkeypatch.setattr(Path, "unlink", sent_just_before)
    assert store.discard(SHA, unused_since=long_ago + 1)
    assert store.has(SHA), "the facts of the new upload stay"
