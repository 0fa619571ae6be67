"""The difference between two stored workspaces: files added, removed and changed, with the changes of short texts."""

import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from core.errors import WorkspaceInvalid
from core.formatting import GIB, format_bytes
from core.storage.workspaces import StoredWorkspace, WorkspaceStore
from core.storage.workspaces.contents import FileContent

MAX_LISTED = 1000  # most files of a kind in a difference
MAX_TEXT_BYTES = 256 * 1024  # largest file whose changes are shown
MAX_UNPACKED_BYTES = GIB
MAX_TEXTS = 100
MAX_DIFF_BYTES = 128 * 1024
SECONDS = 2.0  # longest time for the changes of all files
_CREDENTIALS = re.compile(
    r"(?:.*/)?(?:\.env(?:\.(?!example$|sample$|template$).+)?|.+\.pem|[._]netrc|\.pypirc|\.git-credentials|id_[a-z0-9]+)"
)
"""Paths of files that usually have credentials in them; the client leaves most of them out of workspaces."""


class SizedFile(NamedTuple):
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class ChangedFile:
    path: str
    sizes: tuple[int, int]  # its bytes in the first and in the second workspace
    diff: str | None = None  # the changes as a unified diff; None: not shown
    left_out: str | None = None  # why the changes, or some of them, are not shown


@dataclass(frozen=True, slots=True)
class WorkspaceDiff:
    """The difference between two workspaces; each list has at most `MAX_LISTED` entries, in order of path."""

    added: list[SizedFile] = field(default_factory=list)  # files that only the second one has
    removed: list[SizedFile] = field(default_factory=list)  # files that only the first one has
    changed: list[ChangedFile] = field(default_factory=list)
    counts: tuple[int, int, int, int] = (0, 0, 0, 0)
    left_out: str | None = None  # why the workspaces were not compared; None: they were


def compare_workspaces(store: WorkspaceStore, first: str | None, second: str | None) -> WorkspaceDiff:
    """Compare two uploaded workspaces by their digests; None stands for an empty one."""
    workspaces: list[StoredWorkspace | None] = []
    for sha256 in (first, second):
        stored = store.stat(sha256) if sha256 else None
        if sha256 and stored is None:
            return WorkspaceDiff(left_out=f"The workspace {sha256[:12]}… is no longer stored.")
        if stored and stored.unpacked_bytes > MAX_UNPACKED_BYTES:
            return WorkspaceDiff(
                left_out=f"A workspace has {format_bytes(stored.unpacked_bytes)}; up to "
                f"{format_bytes(MAX_UNPACKED_BYTES)} are compared."
            )
        workspaces.append(stored)
    try:
        before, after = (store.list_files(workspace) if workspace else {} for workspace in workspaces)
        listed = _compare_lists(before, after)
        texts = [file.path for file in listed.changed if _is_shown(file, before, after)][:MAX_TEXTS]
        old, new = (store.read_files(workspace, texts) if workspace and texts else {} for workspace in workspaces)
    except FileNotFoundError:
        return WorkspaceDiff(left_out="A workspace is no longer stored.")
    except WorkspaceInvalid as error:
        return WorkspaceDiff(left_out=f"A workspace cannot be read: {error.message}")
    deadline = time.monotonic() + SECONDS
    changed = [_with_changes(file, old, new, deadline) for file in listed.changed]
    return replace(listed, changed=changed)


def _compare_lists(before: Mapping[str, FileContent], after: Mapping[str, FileContent]) -> WorkspaceDiff:
    added = [SizedFile(path, after[path].size) for path in sorted(after.keys() - before.keys())]
    removed = [SizedFile(path, before[path].size) for path in sorted(before.keys() - after.keys())]
    both = sorted(before.keys() & after.keys())
    changed = [path for path in both if before[path].digest != after[path].digest]
    return WorkspaceDiff(
        added[:MAX_LISTED],
        removed[:MAX_LISTED],
        [ChangedFile(path, (before[path].size, after[path].size)) for path in changed[:MAX_LISTED]],
        (len(added), len(removed), len(changed), len(both) - len(changed)),
    )


def _is_shown(file: ChangedFile, before: Mapping[str, FileContent], after: Mapping[str, FileContent]) -> bool:
    """Return whether the contents of a changed file are read: it is small, no link, and has no credentials by name."""
    links = any(files[file.path].digest.startswith("link to ") for files in (before, after))
    return not links and max(file.sizes) <= MAX_TEXT_BYTES and not _CREDENTIALS.fullmatch(file.path)


def _with_changes(
    file: ChangedFile, before: Mapping[str, bytes], after: Mapping[str, bytes], deadline: float
) -> ChangedFile:
    old, new = before.get(file.path), after.get(file.path)
    if _CREDENTIALS.fullmatch(file.path):
        reason = "Files of this name usually have credentials in them."
    elif max(file.sizes) > MAX_TEXT_BYTES:
        reason = f"Only changes in files up to {format_bytes(MAX_TEXT_BYTES)} are shown."
    elif old is None or new is None:
        reason = f"Only the first {MAX_TEXTS} changed files are shown, and no links."
    elif b"\0" in old or b"\0" in new:
        reason = "It is not text."
    else:
        first, second = (content.decode("utf-8", "replace").splitlines() for content in (old, new))
        try:
            text = _unified_diff(file.path, first, second, deadline - time.monotonic())
        except subprocess.TimeoutExpired:
            return replace(file, left_out="There are too many changes to compare in time.")
        except OSError:
            return replace(file, left_out="The server has no program diff.")
        if len(text) > MAX_DIFF_BYTES:
            return replace(file, diff=text[:MAX_DIFF_BYTES], left_out="The diff is longer; its beginning is shown.")
        return replace(file, diff=text or None, left_out=None if text else "Only its line endings differ.")
    return replace(file, left_out=reason)


def _unified_diff(path: str, first: list[str], second: list[str], seconds: float) -> str:
    """Return the difference of texts, by a program of its own: users choose the lines, and some take long."""
    with tempfile.TemporaryDirectory() as folder:
        sides = Path(folder, "a"), Path(folder, "b")
        for side, lines in zip(sides, (first, second), strict=True):
            side.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
        labels = [f"--label={side.name}/{path}".encode(errors="replace") for side in sides]
        command: list[str | bytes | Path] = ["nice", "-n", "19", "diff", "--text", "--unified", *labels, *sides]
        done = subprocess.run(command, capture_output=True, timeout=max(0.0, seconds), check=False)  # noqa: S603 - no shell
    return done.stdout.decode("utf-8", "replace").removesuffix("\n")
