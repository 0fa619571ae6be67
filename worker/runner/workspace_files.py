"""Files that a job leaves in its workspace: copied to the artifacts if its outputs name them, else reported."""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from core.formatting import format_bytes
from core.jobs.spec.container_options import WORKSPACE
from core.jobs.spec.outputs import matches
from core.storage.artifacts.folder_mirror import FolderMirror, Stopped, never
from core.storage.artifacts.links import follow_links
from core.storage.artifacts.paths import to_public_path
from core.storage.artifacts.scan import (
    ArtifactLimits,
    FolderScan,
    FolderStat,
    SkipList,
    Skipped,
    apply_hole_limit,
    apply_size_limit,
    scan,
)
from core.system.filesystem import write_atomically
from core.system.untrusted_folders import open_file_beneath, opened_beneath, opened_folder

IGNORED_FOLDERS = frozenset(
    {".git", ".venv", "__pycache__", ".cache", ".ipynb_checkpoints", ".pytest_cache", ".mypy_cache", "node_modules"}
)
LIMITS = ArtifactLimits()
_MAX_NAMED = 5
_MAX_PATTERNS = 10
BLOCK_BYTES = 1 << 20
_MOST_BLOCKS = 64
_SMALL_BYTES = 1024  # small files often have the same content by chance


class WorkspaceFiles:
    """The files of one attempt's workspace.

    Args:
        workspace: The folder; once the job has started, nothing in it is trusted.
        record: The file that lists its contents before the start; missing if it was empty.
    """

    def __init__(self, workspace: Path, record: Path) -> None:
        self._workspace = workspace
        self._record = record

    def record(self) -> None:
        """Record the contents, before the job starts. A workspace with too many files is recorded as unknown."""
        scan_result, skips = self._scan()
        listing = None if skips.lost else {path: (seen.size, seen.mtime_ns) for path, seen in scan_result.files.items()}
        if listing == {}:
            self._record.unlink(missing_ok=True)
        else:
            write_atomically(self._record, json.dumps(listing).encode(), durable=False)

    def collect(
        self, patterns: Sequence[str], artifacts: Path, max_bytes: int | None, stopped: Stopped = never
    ) -> tuple[list[Skipped], list[str]]:
        """Copy the files that match a pattern to the same paths below the artifacts folder, replacing what is there.

        A repeat copies them again. Returns matching files that were not copied, with the reasons; and notes on patterns
        that match nothing and on files that are lost with the workspace.

        Args:
            artifacts: The attempt's artifacts folder, which the job may have changed in any way.
            max_bytes: Most bytes to copy; None: only the limit of all artifacts.
            stopped: Returns True once nothing more is to be copied.
        """
        skipped, notes = self._copy(patterns, artifacts, max_bytes, stopped) if patterns else ([], [])
        unkept = self._describe_unkept(patterns, artifacts)
        return skipped, [*notes, *([unkept] if unkept else [])]

    def _copy(
        self, patterns: Sequence[str], artifacts: Path, max_bytes: int | None, stopped: Stopped
    ) -> tuple[list[Skipped], list[str]]:
        scan_result, seen_skips = self._scan()
        linked = follow_links(scan_result, (WORKSPACE, str(self._workspace)), seen_skips)
        names = {path: path for path in scan_result.files} | linked
        wanted = FolderScan(
            files={path: scan_result.files[real] for path, real in names.items() if _is_output(patterns, path)},
            folders={path: seen for path, seen in scan_result.folders.items() if _is_output(patterns, path)},
            sparse=[path for path in scan_result.sparse if _is_output(patterns, path)],
        )
        skips = SkipList()
        self._copy_files(wanted, names, artifacts, LIMITS.capped(max_bytes), skips, stopped)
        left_out = [
            skipped for skipped in seen_skips.entries() if skipped.path == "…" or _is_output(patterns, skipped.path)
        ]
        unmatched = [
            pattern
            for pattern in patterns
            if not any(matches(pattern, path) for path in (*names, *scan_result.folders))
        ]
        return [*skips.entries(), *left_out], [
            f"No file of the workspace matches the output {pattern!r}." for pattern in unmatched
        ]

    def _copy_files(
        self,
        wanted: FolderScan,
        names: Mapping[str, str],
        artifacts: Path,
        limits: ArtifactLimits,
        skips: SkipList,
        stopped: Stopped,
    ) -> None:
        try:
            with (
                # Of this process only: a worker that was frozen may go on with a copy of its own.
                tempfile.TemporaryDirectory(prefix="outputs.", dir=artifacts.parent) as incoming,
                opened_folder(self._workspace) as source,
                opened_folder(artifacts) as target,
                opened_folder(Path(incoming)) as arriving,
            ):
                apply_hole_limit(wanted, source, limits.max_hole_bytes, skips)
                apply_size_limit(wanted, limits.max_bytes, skips)
                mirror = FolderMirror(source, target, arriving, skips, stopped, link=False)
                for path, seen in wanted.files.items():
                    Path(incoming, "new").unlink(missing_ok=True)  # left by a copy that failed
                    try:
                        mirror.add({path: names[path]}, {names[path]: seen}, FolderScan())
                    except OSError as error:  # a full disk, or the job put something else in the way
                        skips.add(path, f"cannot be copied to the artifacts: {error.strerror}", lost=True)
                for path in reversed(list(wanted.folders)):
                    try:
                        _make_folder(target, path, wanted.folders[path])
                    except OSError as error:
                        if not any(file.startswith(f"{path}/") for file in wanted.files):  # or they are named
                            skips.add(path, f"cannot be created in the artifacts: {error.strerror}", lost=True)
                for path in mirror.unsettled:
                    skips.add(path, "changed or vanished while it was copied to the artifacts", lost=True)
        except OSError as error:
            skips.add(".", f"the outputs cannot be copied: {error.strerror}", lost=True)

    def _describe_unkept(self, patterns: Sequence[str], artifacts: Path) -> str | None:
        """Return a sentence about new or changed files that neither outputs nor artifacts contain; None: no files."""
        try:
            before = json.loads(self._record.read_text())
        except FileNotFoundError:
            before = {}
        except (OSError, ValueError):
            return None
        if not isinstance(before, dict):
            return None
        scan_result, _ = self._scan()
        new = {
            path: seen.size
            for path, seen in scan_result.files.items()
            if before.get(path) != [seen.size, seen.mtime_ns]
            and not _is_output(patterns, path)
            and ".egg-info/" not in path  # written by the installation of the folder itself
        }
        copied = _find_copied(self._workspace, new, artifacts) if new else set()
        unkept = {path: size for path, size in new.items() if path not in copied}
        return _describe(unkept) if unkept else None

    def _scan(self) -> tuple[FolderScan, SkipList]:
        skips = SkipList()
        try:
            with opened_folder(self._workspace) as folder:
                return scan(folder, skips, max_files=LIMITS.max_files, ignored=IGNORED_FOLDERS), skips
        except OSError:  # the job removed or replaced the folder
            return FolderScan(), skips


def _make_folder(artifacts: int, path: str, seen: FolderStat) -> None:
    with opened_beneath(artifacts, path.split("/"), create=True) as folder:
        os.fchmod(folder, seen.mode | stat.S_IRWXU)
        os.utime(folder, ns=(seen.mtime_ns, seen.mtime_ns))


def _is_output(patterns: Sequence[str], path: str) -> bool:
    return any(matches(pattern, path) for pattern in patterns)


def _find_copied(workspace: Path, new: dict[str, int], artifacts: Path) -> set[str]:
    """Return the workspace's files that the job itself has copied to the artifacts, small ones under their names."""
    with suppress(OSError), opened_folder(workspace) as source, opened_folder(artifacts) as target:
        stored = scan(target, SkipList(), max_files=LIMITS.max_files).files
        sizes = {seen.size for seen in stored.values()} & set(new.values())
        contents = {_content(target, path, seen.size) for path, seen in stored.items() if seen.size in sizes}
        return {path for path, size in new.items() if size in sizes and _content(source, path, size) in contents}
    return set()


def _content(folder: int, path: str, size: int) -> tuple[str, int, bytes]:
    """Return what stands for a file's content: a digest, of blocks alone if it is large; with the name, if it is small.

    A file that cannot be read equals none.
    """
    digest = hashlib.blake2b(digest_size=16)
    try:
        descriptor = open_file_beneath(folder, path.split("/"))
    except OSError:
        return path, -1, b""
    try:
        for offset in range(0, size, max(BLOCK_BYTES, size // _MOST_BLOCKS)):
            digest.update(os.pread(descriptor, BLOCK_BYTES, offset))
        digest.update(os.pread(descriptor, BLOCK_BYTES, max(0, size - BLOCK_BYTES)))
    except OSError:
        return path, -1, b""
    finally:
        os.close(descriptor)
    return "" if size > _SMALL_BYTES else path.rpartition("/")[2], size, digest.digest()


def _describe(unkept: dict[str, int]) -> str:
    largest = sorted(unkept, key=lambda path: (-unkept[path], path))
    named = [f"{to_public_path(path)} {format_bytes(unkept[path])}" for path in largest[:_MAX_NAMED]]
    count = len(unkept)
    files = f"{count:,} file{'s' * (count != 1)} of the workspace {'was' if count == 1 else 'were'} not kept"
    parts = [to_public_path(path).partition("/") for path in largest]
    patterns = list(dict.fromkeys(glob.escape(name) + ("/**" if slash else "") for name, slash, _ in parts))
    if len(patterns) > _MAX_PATTERNS:
        patterns = ["**"]
    return (
        f"{files}: {', '.join(named)}{', …' if count > _MAX_NAMED else ''}. Write to $GRADIENT_ARTIFACTS_DIR, or use "
        f"{' '.join(f'--outputs {shlex.quote(pattern)}' for pattern in patterns)}."
    )
