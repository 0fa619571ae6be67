"""The difference between stored workspaces: the same for archives and manifests, limited, without credentials."""

import hashlib
import io
import json
import random
import tarfile
import time

import pytest
from support.live_service import make_zip

from core.comparison import workspace_diff
from core.comparison.workspace_diff import compare_workspaces
from core.storage.workspaces import WorkspaceStore
from core.storage.workspaces.limits import WorkspaceLimits

LIMITS = WorkspaceLimits()
BEFORE = {
    "same.py": b"print(1)\n",
    "train.py": b"rate = 0.1\nsteps = 10\nprint(rate)\n",
    "gone/old.txt": b"old",
    "model.bin": b"\0one",
    ".env": b"TOKEN=first\n",
    "large.txt": b"a" * 300_000,
}
AFTER = {
    "same.py": b"print(1)\n",
    "train.py": b"rate = 0.2\nsteps = 10\nprint(rate)\n",
    "new.txt": b"new!",
    "model.bin": b"\0two",
    ".env": b"TOKEN=second\n",
    "large.txt": b"b" * 300_000,
}


@pytest.fixture
def store(tmp_path):
    return WorkspaceStore(tmp_path / "workspaces")


def make_tar(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def add_archive(store, data):
    return store.add(io.BytesIO(data), LIMITS).sha256


def add_manifest(store, files):
    digests = {path: hashlib.sha256(content).hexdigest() for path, content in files.items()}
    rows = [[path, 0o644, len(content), digests[path]] for path, content in sorted(files.items())]
    data = json.dumps({"files": rows}).encode()
    pack = make_tar({digests[path]: content for path, content in files.items()})
    sha256 = hashlib.sha256(data).hexdigest()
    return store.add_manifest(data, io.BytesIO(pack), LIMITS, expected_sha256=sha256, base=None).sha256


def add(store, kind, files):
    if kind == "manifest":
        return add_manifest(store, files)
    return add_archive(store, make_zip(files) if kind == "zip" else make_tar(files))


@pytest.mark.parametrize(("first", "second"), [("zip", "zip"), ("tar", "manifest"), ("manifest", "zip")])
def test_files_added_removed_and_changed(store, first, second):
    found = compare_workspaces(store, add(store, first, BEFORE), add(store, second, AFTER))
    assert [tuple(one) for one in found.added] == [("new.txt", 4)]
    assert [tuple(one) for one in found.removed] == [("gone/old.txt", 3)]
    assert (found.counts, found.left_out) == ((1, 1, 4, 1), None)
    changed = {one.path: one for one in found.changed}
    assert list(changed) == [".env", "large.txt", "model.bin", "train.py"]
    assert changed["train.py"].diff.splitlines()[3:5] == ["-rate = 0.1", "+rate = 0.2"]
    assert changed["train.py"].left_out is None
    assert "credentials" in changed[".env"].left_out
    assert "up to" in changed["large.txt"].left_out
    assert changed["model.bin"].left_out == "It is not text."
    assert [one.path for one in found.changed if one.diff] == ["train.py"]


def test_a_workspace_that_is_gone_or_too_large_is_not_compared(store, monkeypatch):
    sha256 = add(store, "zip", BEFORE)
    assert "no longer stored" in compare_workspaces(store, sha256, "0" * 64).left_out
    monkeypatch.setattr(workspace_diff, "MAX_UNPACKED_BYTES", 10)
    assert "up to 10 B are compared" in compare_workspaces(store, sha256, None).left_out


def test_chosen_lines_cost_this_process_little_and_all_of_it_a_bounded_time(store):
    symbols = random.Random(1).choices(range(110), k=20_000)  # noqa: S311 - no secret
    lines = [f"{symbol}\n".encode() for symbol in symbols]
    sides = [{f"{n}.txt": b"".join(part) for n in range(8)} for part in (lines[:10_000], lines[10_000:])]
    digests = [add(store, "zip", side) for side in sides]
    used, began = time.process_time(), time.monotonic()
    found = compare_workspaces(store, *digests)
    assert time.process_time() - used < 1.0, "Python's own difflib takes 16 s for 5,000 such lines"
    assert time.monotonic() - began < workspace_diff.SECONDS + 5
    assert all(one.diff or "in time" in one.left_out for one in found.changed)


def test_lists_and_texts_are_limited(store, monkeypatch):
    monkeypatch.setattr(workspace_diff, "MAX_LISTED", 3)
    monkeypatch.setattr(workspace_diff, "MAX_TEXTS", 2)
    monkeypatch.setattr(workspace_diff, "MAX_DIFF_BYTES", 20)
    sides = [{f"{n}.txt": f"{side} of {n}\n".encode() for n in range(5)} for side in ("first", "second")]
    found = compare_workspaces(store, *(add(store, "zip", side) for side in sides))
    assert found.counts == (0, 0, 5, 0)
    assert [len(one.diff or "") for one in found.changed] == [20, 20, 0]
    assert "its beginning is shown" in found.changed[0].left_out
    assert "Only the first 2 changed files" in found.changed[2].left_out
