"""Symbolic links among artifacts: kept as what they lead to, if that is in the folder."""

import errno
import os
import shutil
import time

import pytest

from core.storage.artifacts import folder_mirror
from core.storage.artifacts.store import ArtifactLimits, DirectoryStore

JOB = "j" + "0" * 12 + "1"
OUTSIDE = "a symbolic link to a target outside the folder is not followed"
MISSING = "a symbolic link to something that does not exist or is not kept"
LOOP = "a symbolic link to itself, or to a folder around it"


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "scratch" / "artifacts"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture(params=["links", "copies"])
def store(tmp_path, request, monkeypatch):
    """A store on the job's file system, and one where each file has to be copied."""
    if request.param == "copies":
        make = os.link

        def link(name, new, *, src_dir_fd=None, **options):
            if src_dir_fd is not None and os.path.samestat(
                os.fstat(src_dir_fd), (tmp_path / "scratch" / "artifacts").stat()
            ):
                raise OSError(errno.EXDEV, "other file system")
            make(name, new, src_dir_fd=src_dir_fd, **options)

        monkeypatch.setattr(folder_mirror.os, "link", link)
    return DirectoryStore(tmp_path / "store")


def kept(store):
    found = {}
    for file in store.walk(JOB, 1):
        with store.open(JOB, 1, file.path).file as stream:
            found[file.path] = stream.read().decode()
    return found


def test_links_of_every_form_are_followed(store, source):
    (source / "runs" / "1" / "deep").mkdir(parents=True)
    (source / "runs" / "1" / "a").write_text("a")
    (source / "runs" / "1" / "deep" / "b").write_text("b")
    (source / "runs" / "1" / "up").symlink_to("../2/link")
    (source / "runs" / "2").mkdir()
    (source / "runs" / "2" / "link").symlink_to(source / "runs" / "1" / "a")
    (source / "absolute").symlink_to("/artifacts/runs/1/deep/b")
    (source / "folder").symlink_to("runs/./1/")
    (source / "chain").symlink_to("folder/deep/../../2/link")
    (source / "odd \udcff").symlink_to("absolute")
    expected = {"runs/1/a": "a", "runs/1/deep/b": "b", "runs/1/up": "a", "runs/2/link": "a", "absolute": "b"}
    expected |= {"folder/a": "a", "folder/deep/b": "b", "folder/up": "a", "chain": "a", "odd %FF": "b"}
    for _ in range(2):
        store.sync(JOB, 1, source)
        assert kept(store) == expected
    (source / "folder").unlink()
    (source / "folder").write_text("a file now")
    (source / "absolute").unlink()
    (source / "absolute").symlink_to("runs/1/deep")
    manifest = store.close(JOB, 1, source)
    assert kept(store)["folder"] == "a file now"
    assert kept(store)["absolute/b"] == "b"
    assert {skipped.path for skipped in manifest.skipped} == {"chain", "odd %FF"} - {"odd %FF"}
    assert kept(store)["odd %FF/b"] == "b"


def test_links_that_lead_nowhere_or_out_are_named(store, source, tmp_path):
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "scratch" / "artifacts-of-another").mkdir()
    (tmp_path / "scratch" / "artifacts-of-another" / "file").write_text("secret")
    (source / "here").write_text("here")
    os.link(tmp_path / "secret", source / "hard")
    (source / "sub").mkdir()
    targets = {
        "itself": ("itself", LOOP),
        "one": ("two", LOOP),
        "two": ("one", LOOP),
        "sub/around": ("..", LOOP),
        "sub/self": (".", LOOP),
        "dangling": ("nowhere", MISSING),
        "through": ("here/below", MISSING),
        "to-hard": ("hard", MISSING),
        "up": ("../secret", OUTSIDE),
        "up-and-back": ("../artifacts/here", OUTSIDE),
        "out": (str(tmp_path / "secret"), OUTSIDE),
        "sibling": (f"{source}-of-another/file", OUTSIDE),
    }
    for path, (target, _) in targets.items():
        (source / path).symlink_to(target)
    manifest = store.close(JOB, 1, source)
    why = dict(manifest.skipped)
    assert {path: why[path] for path in targets} == {path: reason for path, (_, reason) in targets.items()}
    assert kept(store) == {"here": "here"}


def test_links_that_multiply_cost_little(source, tmp_path):
    for level in range(60):
        folder = source / f"level{level}"
        folder.mkdir()
        for name in ("left", "right"):
            (folder / name).symlink_to(f"../level{level + 1}")
    (source / "level60").mkdir()
    (source / "level60" / "file").write_text("real")
    began = time.process_time()
    manifest = DirectoryStore(tmp_path / "store", limits=ArtifactLimits(max_files=50)).close(JOB, 1, source)
    assert time.process_time() - began < 20
    assert manifest.state == "partial"
    assert manifest.files <= 50


def test_links_count_toward_the_limits(source, tmp_path):
    (source / "a").write_bytes(bytes(100))
    for name in ("b", "c"):
        (source / name).symlink_to("a")
    store = DirectoryStore(tmp_path / "store", limits=ArtifactLimits(max_bytes=250))
    manifest = store.close(JOB, 1, source)
    assert (manifest.state, manifest.bytes) == ("partial", 200)
    assert dict(manifest.skipped) == {"c": "over the limit of 250 bytes for all artifacts"}
    (source / "a").unlink()
    (source / "a").write_bytes(bytes(100))
    store = DirectoryStore(tmp_path / "other", limits=ArtifactLimits(max_files=2))
    assert dict(store.close(JOB, 1, source).skipped) == {"c": "over the limit of 2 files"}


def test_a_link_replaced_again_and_again_is_always_whole(store, source):
    for step in range(30):
        (source / f"{step % 2}").mkdir(exist_ok=True)
        (source / f"{step % 2}" / "weights").write_text(str(step))
        (source / "new").symlink_to(str(step % 2))
        (source / "new").rename(source / "last")
        store.sync(JOB, 1, source)
        assert kept(store)["last/weights"] == str(step)
    shutil.rmtree(source / "1")
    store.close(JOB, 1, source)
    assert kept(store) == {"0/weights": "28"}
