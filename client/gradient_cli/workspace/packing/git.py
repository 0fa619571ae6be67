"""Questions to git about a folder; without git, its files tell less."""

from __future__ import annotations

import os

_MAX_CHARACTERS = 200
_OTHER_REPOSITORY = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}  # set in hooks


def find_ignore_files(top: str) -> list[str]:
    """Return the other ignore files of a repository, which need not exist, in ascending precedence."""
    everywhere = _run(top, "config", "--type=path", "core.excludesFile")
    if everywhere is None:
        base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
        everywhere = os.path.join(base, "git", "ignore")
    of_repository = _run(top, "rev-parse", "--git-path", "info/exclude") or os.path.join(".git", "info", "exclude")
    return [os.path.join(top, path) for path in (everywhere, of_repository)]


def find_tracked(root: str) -> set[str]:
    """Return the absolute paths of tracked files below a folder that patterns match, and of the folders they are in."""
    paths: set[str] = set()
    for name in (_run(root, "ls-files", "-z", "-ci", "--exclude-standard") or "").split("\0"):
        path = os.path.join(root, name)
        while os.path.lexists(path) and len(path) > len(root) + 1 and path not in paths:
            paths.add(path)
            path = os.path.dirname(path)
    return paths


def describe_commit(root: str) -> dict[str, object]:
    """Return a folder's commit, its branch, whether files differ from it, and its name by tags, as options of a job.

    Empty if nothing of the folder is in a commit.
    """
    commit = _run(root, "rev-parse", "--verify", "HEAD")
    if not commit or not _run(root, "ls-tree", "--name-only", "HEAD", "./"):
        return {}
    fields = {
        "codeCommit": commit,
        "codeBranch": _run(root, "symbolic-ref", "--quiet", "--short", "HEAD"),
        "codeDescribe": _run(root, "describe", "--tags", "--long"),
        "codeDirty": bool(_run(root, "status", "--porcelain", "--", ".")),
    }
    return {
        name: value[:_MAX_CHARACTERS] if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }


def _run(folder: str, *question: str) -> str | None:
    import subprocess

    # A folder's own settings must not have git run a program.
    command = ["git", "-c", "core.fsmonitor=false", "-C", folder, *question]
    env = {name: value for name, value in os.environ.items() if name not in _OTHER_REPOSITORY}
    try:
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, check=True)  # noqa: S603 - git, without a shell
    except (OSError, subprocess.CalledProcessError):
        return None
    return os.fsdecode(done.stdout).removesuffix("\n")
