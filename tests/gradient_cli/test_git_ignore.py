"""Workspaces in a git repository: all of git's ignore files, tracked files, and what is said of those left out."""

import os
import subprocess

import pytest

from gradient_cli.errors import ClientError
from gradient_cli.workspace.packing.archive import WorkspaceFolder, describe_skipped
from gradient_cli.workspace.packing.git import describe_commit

pytestmark = pytest.mark.unit


def write(folder, *names, text="x"):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def git(folder, *command):
    subprocess.run(["git", "-C", folder, *command], check=True, capture_output=True)


COMMIT = ("-c", "user.name=n", "-c", "user.email=n@example.org", "commit", "-q", "-m", "one")


def files(folder):
    return [entry.path for entry in WorkspaceFolder(str(folder)).files if not entry.path.startswith(".g")]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_") or name == "XDG_CONFIG_HOME"]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return tmp_path / "home"


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    write(folder, "main.py", "notes.txt", "sub/notes.txt", "sub/b.py")
    git(folder, "init", "-q")
    return folder


PLACES = ["info/exclude", ".config/git/ignore", "XDG_CONFIG_HOME"]


@pytest.mark.parametrize(
    ("place", "has_git"), [*((place, has) for place in PLACES for has in (True, False)), ("core.excludesFile", True)]
)
def test_every_ignore_file_of_git_counts(repository, home, monkeypatch, place, has_git):
    if place == "info/exclude":
        write(repository, ".git/info/exclude", text="notes.txt\n")
    elif place == "core.excludesFile":
        write(home, ".gitconfig", text="[core]\nexcludesFile = ~/my-ignores\n")
        write(home, "my-ignores", text="notes.txt\n")
    elif place == "XDG_CONFIG_HOME":
        monkeypatch.setenv(place, str(home / "xdg"))
        write(home, "xdg/git/ignore", text="notes.txt\n")
    else:
        write(home, place, text="notes.txt\n")
    if not has_git:
        monkeypatch.setenv("PATH", "")
    assert files(repository) == ["main.py", "sub/b.py"]
    assert files(repository / "sub") == ["b.py"]


def test_the_files_of_a_linked_work_tree_are_those_of_its_repository(repository, tmp_path):
    git(repository, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "--allow-empty", "-m", "a")
    git(repository, "worktree", "add", "-q", str(tmp_path / "linked"))
    write(repository, ".git/info/exclude", text="notes.txt\n")
    write(tmp_path / "linked", "notes.txt", "main.py")
    assert files(tmp_path / "linked") == ["main.py"]


def test_tracked_files_are_uploaded_although_patterns_match(repository):
    write(repository, ".gitignore", text="*.ckpt\n/data/\n")
    write(repository, "keep.ckpt", "other.ckpt", "data/größe/kept.bin", "data/other.bin", "data/gone")
    git(repository, "add", "-f", "keep.ckpt", "data/größe/kept.bin", "data/gone")
    (repository / "data" / "gone").unlink()
    kept = ["data/größe/kept.bin", "keep.ckpt", "main.py", "notes.txt", "sub/b.py", "sub/notes.txt"]
    assert files(repository) == kept
    assert files(repository / "data") == ["größe/kept.bin"]
    write(repository, ".gradientignore", text="*.ckpt\n")
    assert "keep.ckpt" not in files(repository)


def test_a_tracked_credential_that_git_ignores_stays_out(repository):
    write(repository, ".gitignore", text=".env\n")
    write(repository, ".env")
    git(repository, "add", "-f", ".env")
    folder = WorkspaceFolder(str(repository))
    assert ".env" not in {entry.path for entry in folder.files}
    assert folder.left_out == [".env"]


def test_a_hook_s_variables_do_not_lead_to_another_repository(repository, tmp_path, monkeypatch):
    write(repository, ".gitignore", text="*.ckpt\n")
    write(repository, "secret.ckpt")
    other = tmp_path / "other"
    write(other, "secret.ckpt")
    git(other, "init", "-q")
    git(other, "add", "secret.ckpt")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert "secret.ckpt" not in files(repository)


def test_the_commit_of_a_folder_is_told(repository, tmp_path):
    def told(folder=repository):
        return describe_commit(str(folder))

    assert told() == {}, "nothing is committed yet"
    git(repository, "add", ".")
    git(repository, *COMMIT)
    commit = subprocess.check_output(["git", "-C", repository, "rev-parse", "HEAD"], text=True).strip()
    git(repository, "checkout", "-q", "-b", "feature/x")
    assert told() == {"codeCommit": commit, "codeBranch": "feature/x", "codeDirty": False}
    git(repository, "tag", "v1.2")
    write(repository, "new.py")
    expected = {"codeCommit": commit, "codeDirty": True, "codeDescribe": f"v1.2-0-g{commit[:7]}"}
    assert told() == {**expected, "codeBranch": "feature/x"}
    assert told(repository / "sub") == {**expected, "codeBranch": "feature/x", "codeDirty": False}
    git(repository, "checkout", "-q", "--detach")
    assert told() == expected
    (repository / "elsewhere").mkdir()
    assert told(repository / "elsewhere") == {}, "nothing of it is in the commit"
    assert told(tmp_path) == {}


def test_files_that_git_ignores_are_named_with_their_patterns(repository, home):
    write(repository, ".gitignore", text="# all\n\ndata/\n*.log\n")
    write(repository, ".git/info/exclude", text="notes.txt\n")
    write(repository, "data/a", "data/b", "x.log", "sub/__pycache__/a.pyc")
    folder = WorkspaceFolder(str(repository))
    assert folder.ignored == [
        ("data/", ".gitignore, line 3"),
        ("notes.txt", ".git/info/exclude, line 1"),
        ("sub/notes.txt", ".git/info/exclude, line 1"),
        ("x.log", ".gitignore, line 4"),
    ]
    [said] = describe_skipped(folder)
    assert said.startswith("left out data/ (.gitignore, line 3), notes.txt (.git/info/exclude, line 1), ")
    assert said.endswith(" and 1 more, because git ignores them; --include PATTERN uploads such files")
    write(home, ".config/git/ignore", text="main.py\n")
    assert ("main.py", f"{home}/.config/git/ignore, line 1") in WorkspaceFolder(str(repository)).ignored


def test_a_wrong_pattern_of_git_is_refused_with_its_file(repository):
    write(repository, ".git/info/exclude", text="!\n")
    with pytest.raises(ClientError, match="info/exclude"):
        WorkspaceFolder(str(repository))
