import os
import socket

import pytest

from worker.runner import workspace_files
from worker.runner.workspace_files import WorkspaceFiles


class Attempt:
    """The folders of one attempt."""

    def __init__(self, root):
        self.root = root
        self.workspace, self.artifacts = root / "workspace", root / "artifacts"
        self.workspace.mkdir()
        self.artifacts.mkdir()
        self.files = WorkspaceFiles(self.workspace, root / "workspace.json")

    def write(self, path, text="x"):
        file = self.workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def collect(self, *patterns, max_bytes=None):
        return self.files.collect(patterns, self.artifacts, max_bytes)

    @property
    def kept(self):
        return {str(file.relative_to(self.artifacts)) for file in self.artifacts.rglob("*") if file.is_file()}


@pytest.fixture
def attempt(tmp_path):
    return Attempt(tmp_path)


def test_new_and_changed_files_are_named_largest_first(attempt):
    attempt.write("main.py")
    os.utime(attempt.write("config.json"), (1, 1))
    attempt.files.record()
    attempt.write("model.pt", "m" * 12_000)
    attempt.write("outputs/a.png", "p" * 3000)
    attempt.write("config.json", "y")
    attempt.write("__pycache__/main.pyc")
    note = (
        "3 files of the workspace were not kept: model.pt 12.0 kB, outputs/a.png 3.0 kB, config.json 1 B. "
        "Write to $GRADIENT_ARTIFACTS_DIR, or use --outputs model.pt --outputs 'outputs/**' --outputs config.json."
    )
    assert attempt.collect() == ([], [note])


def test_a_file_that_the_job_copied_itself_is_not_reported(attempt):
    attempt.files.record()
    attempt.write("model.pt", "weights")
    (attempt.artifacts / "best").mkdir()
    (attempt.artifacts / "best" / "model.pt").write_text("weights")
    assert attempt.collect() == ([], [])


def test_a_lost_file_is_named_although_an_artifact_has_its_name_and_size(attempt, monkeypatch):
    monkeypatch.setattr(workspace_files, "BLOCK_BYTES", 16)
    attempt.files.record()
    for fold in ("fold0", "fold1", "fold2"):
        attempt.write(f"{fold}/model.pt", f"weights of {fold} " * 200)
    attempt.write("fold0/empty", "")
    attempt.write("fold0/none", "")
    (attempt.artifacts / "best.pt").write_text("weights of fold1 " * 200)
    (attempt.artifacts / "empty").touch()
    _, (note,) = attempt.collect()
    assert note.startswith("3 files of the workspace were not kept: ")
    assert all(path in note for path in ("fold0/model.pt", "fold2/model.pt", "fold0/none"))
    assert "fold1" not in note
    assert note.endswith("use --outputs 'fold0/**' --outputs 'fold2/**'.")


def test_the_hint_covers_all_files_however_many_folders_they_are_in(attempt):
    attempt.files.record()
    for number in range(40):
        attempt.write(f"run{number}/log.txt", "x" * (number + 1))
    _, (note,) = attempt.collect()
    assert note.endswith("or use --outputs '**'.")


def test_nothing_is_claimed_about_an_unknown_workspace(attempt, monkeypatch):
    assert attempt.collect() == ([], []), "nothing was recorded"
    attempt.write("a")
    attempt.write("b")
    monkeypatch.setattr(workspace_files, "LIMITS", workspace_files.ArtifactLimits(max_files=1))
    attempt.files.record()
    attempt.write("c")
    assert attempt.collect() == ([], []), "too many files to record"


def test_links_within_the_workspace_are_copied_as_what_they_lead_to(attempt):
    attempt.files.record()
    attempt.write("checkpoints/1.ckpt", "weights")
    (attempt.workspace / "out").mkdir()
    (attempt.workspace / "out" / "last.ckpt").symlink_to("../checkpoints/1.ckpt")
    (attempt.workspace / "best").symlink_to("/paperspace/checkpoints")
    assert attempt.collect("out/**", "best/**", "checkpoints/**") == ([], [])
    assert attempt.kept == {"out/last.ckpt", "best/1.ckpt", "checkpoints/1.ckpt"}
    assert (attempt.artifacts / "out" / "last.ckpt").read_text() == "weights"


def test_hostile_files_are_refused_one_by_one(attempt, tmp_path, monkeypatch):
    attempt.files.record()
    secret = tmp_path / "secret"
    secret.write_text("x")
    outside = tmp_path / "outside"
    outside.mkdir()
    attempt.write("out/good")
    (attempt.workspace / "out" / "link").symlink_to(secret)
    (attempt.workspace / "out" / "folder").symlink_to(outside)
    os.mkfifo(attempt.workspace / "out" / "pipe")
    attempt.write("out/" + os.fsdecode(b"bad\xff\n"))
    attempt.write("taken/x")
    attempt.write("link/x")
    attempt.write("dir")
    (attempt.artifacts / "taken").write_text("a file in the way")
    (attempt.artifacts / "link").symlink_to(outside)
    (attempt.artifacts / "dir").mkdir()
    monkeypatch.chdir(attempt.workspace / "out")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        skipped, _ = attempt.collect("**")
    reasons = dict(skipped)
    assert reasons.keys() == {"out/link", "out/folder", "out/pipe", "out/socket", "taken/x", "link/x", "dir"}
    assert reasons["out/link"] == "a symbolic link to a target outside the folder is not followed"
    assert reasons["taken/x"].startswith("cannot be copied to the artifacts: ")
    assert list(outside.iterdir()) == []
    assert (attempt.artifacts / "out" / "good").read_text() == "x"
    assert len(list((attempt.artifacts / "out").iterdir())) == 2


def test_the_quota_bounds_the_copies(attempt):
    attempt.files.record()
    attempt.write("a", "x" * 600)
    attempt.write("b", "x" * 600)
    attempt.write("c", "x" * 300)
    skipped, _ = attempt.collect("**", max_bytes=1000)
    assert [path for path, _ in skipped] == ["b"]
    assert attempt.kept == {"a", "c"}


def test_a_workspace_replaced_by_a_link_is_not_followed(attempt, tmp_path):
    attempt.files.record()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "a").write_text("x")
    attempt.workspace.rmdir()
    attempt.workspace.symlink_to(tmp_path / "etc")
    skipped, notes = attempt.collect("**")
    assert [path for path, _ in skipped] == ["."]
    assert notes == ["No file of the workspace matches the output '**'."]
    assert attempt.kept == set()


def test_a_worker_that_wakes_in_the_middle_of_a_copy_mixes_up_no_files(attempt, monkeypatch):
    for name in ("a.pt", "b.pt"):
        attempt.write(name, name)
    copy = workspace_files.FolderMirror._write_copy

    def freeze(mirror, reading, status):
        copy(mirror, reading, status)
        monkeypatch.setattr(workspace_files.FolderMirror, "_write_copy", copy)
        attempt.collect("*.pt")  # by another worker, which has the job now

    monkeypatch.setattr(workspace_files.FolderMirror, "_write_copy", freeze)
    assert attempt.collect("*.pt") == ([], [])
    assert {name: (attempt.artifacts / name).read_text() for name in attempt.kept} == {"a.pt": "a.pt", "b.pt": "b.pt"}
