"""Two workers store one attempt's artifacts: one was frozen, and wakes when the other has closed the attempt."""

import os
import shutil
from contextlib import suppress

import pytest

from core.storage.artifacts import folder_mirror, store
from core.storage.artifacts.store import DirectoryStore

JOB = "jabc123"
FILES = {"a": b"alpha", "b/c": b"gamma", "d": b"delta"}


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "attempt" / "artifacts"
    for path, data in FILES.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return folder


@pytest.fixture
def artifacts(tmp_path):
    return DirectoryStore(tmp_path / "store")


@pytest.fixture
def freeze(monkeypatch):
    """Lets another worker work when this one first calls a function."""

    def arrange(module, name, other):
        real = getattr(module, name)

        def call(*args, **options):
            monkeypatch.setattr(module, name, real)
            other()
            return real(*args, **options)

        monkeypatch.setattr(module, name, call)

    return arrange


def close_and_remove(artifacts, source):
    assert artifacts.close(JOB, 1, source).state == "complete"
    shutil.rmtree(source.parent)


def kept(artifacts):
    found = {}
    for file in artifacts.walk(JOB, 1):
        with artifacts.open(JOB, 1, file.path).file as stream:
            found[file.path] = stream.read()
    return found


@pytest.mark.parametrize("step", ["sync", "close"])
@pytest.mark.parametrize("before", [(folder_mirror, "scan"), (folder_mirror, "apply_size_limit")])
def test_a_worker_frozen_before_it_mirrors_empties_nothing(artifacts, source, freeze, step, before):
    artifacts.sync(JOB, 1, source)
    freeze(*before, lambda: close_and_remove(artifacts, source))
    with suppress(OSError):
        getattr(artifacts, step)(JOB, 1, source)
    assert kept(artifacts) == FILES
    assert artifacts.close(JOB, 1, source).state == "complete"


def test_a_worker_frozen_before_it_writes_the_manifest_replaces_none(artifacts, source, freeze):
    freeze(store, "write_manifest", lambda: close_and_remove(artifacts, source))
    (source / "e").write_bytes(b"of the frozen worker only")
    os.truncate(source / "e", 0)
    assert artifacts.close(JOB, 1, source).files == len(FILES) + 1
    assert kept(artifacts) == FILES | {"e": b""}


def test_a_worker_that_wakes_takes_no_folder_away_from_the_other(artifacts, source, freeze):
    freeze(folder_mirror.FolderMirror, "run", lambda: artifacts.sync(JOB, 1, source))
    manifest = artifacts.close(JOB, 1, source)
    assert (manifest.state, manifest.skipped) == ("complete", ())
    assert kept(artifacts) == FILES
