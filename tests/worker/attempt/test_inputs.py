"""Artifacts of another job in a workspace: where they may be, and of which attempt they are."""

import pytest

from core.jobs.spec.dependencies import JobInput
from core.storage.artifacts.store import DirectoryStore
from worker.attempt.inputs import place_input
from worker.backends.base import LaunchError


@pytest.fixture
def store(tmp_path):
    """The artifacts of two attempts of a job, of which a third one left none."""
    found = DirectoryStore(tmp_path / "store")
    for attempt in (1, 2):
        source = tmp_path / f"source-{attempt}"
        (source / "deep").mkdir(parents=True)
        (source / "deep" / "model.bin").write_text(f"of attempt {attempt}")
        found.close("j1", attempt, source)
    return found


@pytest.fixture
def workspace(tmp_path):
    folder = tmp_path / "workspace"
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "a.txt").touch()
    (folder / "out").symlink_to(tmp_path)
    (folder / "in").symlink_to("data")
    return folder


def place(store, workspace, folder, job_id="j1"):
    place_input(store, JobInput(job_id, folder), 3, workspace, lambda: None)


def test_an_input_is_a_copy_of_the_last_attempt_that_left_artifacts(store, workspace):
    place(store, workspace, "data/model")
    copy = workspace / "data/model/deep/model.bin"
    assert copy.read_text() == "of attempt 2"
    copy.write_text("changed")
    with store.open("j1", 2, "deep/model.bin").file as stored:
        assert stored.read() == b"of attempt 2"
    place(store, workspace, "in/below")
    assert (workspace / "data/below/deep/model.bin").exists()


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        ("data", "the workspace already has data"),
        ("data/a.txt/x", "the workspace already has data/a.txt/x"),
        ("out/x", "out/x leads out of the workspace"),
        ("out", "the workspace already has out"),
    ],
)
def test_an_input_has_a_folder_of_its_own_within_the_workspace(store, workspace, tmp_path, folder, words):
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LaunchError, match=words):
        place(store, workspace, folder)
    assert sorted(tmp_path.iterdir()) == before


def test_a_job_without_artifacts_is_no_input(store, workspace):
    with pytest.raises(LaunchError, match="job j2 has no artifacts"):
        place(store, workspace, "model", "j2")
