"""Packing of a folder into a reproducible archive, so that an unchanged workspace is not uploaded again."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from gradient_cli import terminal
from gradient_cli.errors import ClientError
from gradient_cli.formatting import format_count
from gradient_cli.workspace.packing.digest import sha256
from gradient_cli.workspace.packing.ignore import BY_DEFAULT, BY_RULE, NOT_EXCLUDED, IgnoreRules

if TYPE_CHECKING:
    from typing_extensions import Self


_LEVEL = 3  # fast: most bytes of a workspace other than text do not compress, and the user waits
_MAX_NAMED = 10
_SMALL_SHARE = 100
_FEW = 3
_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1024
CHANGED_HINT = "Wait until nothing writes to it or exclude it with a .gradientignore, then submit again."


class WorkspaceEntry:
    __slots__ = ("grown", "kind", "mode", "modified", "path", "size", "target", "version")

    def __init__(self, path: str, kind: str, status: os.stat_result, target: str = "") -> None:
        self.path = path
        self.kind = kind  # `file`, `folder` or `link`
        self.mode = stat.S_IMODE(status.st_mode) & 0o777  # its permission bits
        self.modified = status.st_mtime_ns // 1_000_000  # Unix time in milliseconds of its last change
        self.size = status.st_size if kind == "file" else 0  # bytes
        self.target = target
        self.grown = False
        # changes with the contents of a file: inode, and times of change in nanoseconds
        self.version = status.st_ino, status.st_mtime_ns, status.st_ctime_ns


class WorkspaceFolder:
    def __init__(self, root: str, include: Sequence[str] = ()) -> None:
        self.root = os.path.realpath(root)
        self.entries: list[WorkspaceEntry] = []
        self.skipped: list[tuple[str, str]] = []
        self.left_out: list[str] = []  # paths that are excluded by default
        # paths that git's ignore files exclude, those of folders with a slash, each with the pattern's place
        self.ignored: list[tuple[str, str]] = []
        self.scanned_at = time.time_ns()  # Unix time in nanoseconds of the start of the scan
        self._unreadable: list[str] = []
        rules = self._rules = IgnoreRules.for_root(self.root, include)
        self._scan(self.root, "", rules)
        _raise_unreadable(self._unreadable)
        if rules.inclusion:
            rules.inclusion.refuse_unused([e.path + "/" * (e.kind == "folder") for e in self.entries])
        self.entries.sort(key=lambda entry: os.fsencode(entry.path))
        self.left_out.sort()
        self.ignored.sort()

    @property
    def files(self) -> list[WorkspaceEntry]:
        return [entry for entry in self.entries if entry.kind == "file"]

    @property
    def size(self) -> int:
        """Total bytes of all files, before compression."""
        return sum(entry.size for entry in self.entries)

    def largest(self) -> list[WorkspaceEntry]:
        """Return the ten largest files, largest first, without those that are small beside them."""
        largest = sorted(self.files, key=lambda entry: (-entry.size, entry.path))[:_MAX_NAMED]
        return [entry for entry in largest if entry.size * _SMALL_SHARE >= largest[0].size]

    def find_exclusion(self, path: str) -> str:
        """Return what excludes a file or folder, or an empty text; `path` is relative to the folder."""
        full, rules = self.root, self._rules
        for name in path.split("/") if os.path.exists(os.path.join(self.root, path)) else ():
            full = os.path.join(full, name)
            excluded = rules.excluded_by(full, is_folder=os.path.isdir(full))
            if excluded in {BY_DEFAULT, BY_RULE}:
                return "default"
            if excluded != NOT_EXCLUDED:
                return excluded.removeprefix(f"{self.root}/")
            if os.path.isdir(full):
                rules = IgnoreRules(full, rules)
        return ""

    def _scan(self, folder: str, prefix: str, rules: IgnoreRules) -> None:
        for item in self._list(folder, prefix):
            path, is_folder = prefix + item.name, item.is_dir(follow_symlinks=False)
            excluded = rules.excluded_by(item.path, is_folder=is_folder)
            if excluded == NOT_EXCLUDED:
                self._add(item, path, rules)
            elif is_folder and self._add_included_part(item, path, rules):
                continue
            elif excluded == BY_DEFAULT:
                self.left_out.append(path)
            elif excluded != BY_RULE and "/.gradientignore" not in excluded:  # which is written for jobs
                self.ignored.append((path + "/" * is_folder, excluded.removeprefix(f"{self.root}/")))

    def _list(self, folder: str, prefix: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return list(entries)
        except OSError:
            self._add_unreadable(folder, prefix or folder)
            return []

    def _add_unreadable(self, full: str, path: str) -> None:
        if os.path.lexists(full):
            self._unreadable.append(path)
        else:
            self.skipped.append((path, "it was deleted in the meantime"))

    def _add_included_part(self, folder: os.DirEntry[str], path: str, rules: IgnoreRules) -> bool:
        """Add the part of an excluded folder that --include brings back; return whether there is one."""
        inclusion = rules.inclusion
        if inclusion is None or folder.name == ".git" or not inclusion.reaches_into(folder.path):
            return False
        before = len(self.entries)
        for item in self._list(folder.path, f"{path}/"):
            below, is_folder = f"{path}/{item.name}", item.is_dir(follow_symlinks=False)
            if inclusion.matches(item.path, is_folder=is_folder):
                self._add(item, below, rules)
            elif is_folder:
                self._add_included_part(item, below, rules)
        if len(self.entries) == before:
            return False
        self.entries.append(WorkspaceEntry(path, "folder", folder.stat()))
        return True

    def _add(self, item: os.DirEntry[str], path: str, rules: IgnoreRules) -> None:
        try:
            status = item.stat(follow_symlinks=False)
        except OSError:
            self._add_unreadable(item.path, path)
            return
        if "\\" in item.name:  # it would be another path there
            self.skipped.append((path, "its name has a backslash, which separates folders on Windows"))
        elif stat.S_ISDIR(status.st_mode):
            self._add_folder(item.path, WorkspaceEntry(path, "folder", status), IgnoreRules(item.path, rules))
        elif item.is_symlink():
            written = os.readlink(item.path)
            here = os.path.dirname(item.path)
            target = os.path.normpath(os.path.join(here, written))
            if _is_inside(target, self.root) and _is_inside(os.path.realpath(item.path), self.root):
                relative = os.path.relpath(target, here) if os.path.isabs(written) else written
                self.entries.append(WorkspaceEntry(path, "link", status, relative))
            else:
                self.skipped.append((path, f"a link that leaves the folder, to {written}"))
        elif not stat.S_ISREG(status.st_mode):
            self.skipped.append((path, "neither a file nor a folder"))
        elif not os.access(item.path, os.R_OK):
            self._add_unreadable(item.path, path)
        else:
            self.entries.append(WorkspaceEntry(path, "file", status))

    def _add_folder(self, full: str, entry: WorkspaceEntry, rules: IgnoreRules) -> None:
        before = len(self.entries)
        self._scan(full, f"{entry.path}/", rules)
        if len(self.entries) > before or not rules.excludes_itself():
            self.entries.append(entry)


class Archive:
    """A workspace archive; a temporary one is deleted at the end of a `with` block."""

    def __init__(self, path: str, sha256: str, size: int, *, temporary: bool) -> None:
        self.path = path
        self.sha256 = sha256  # its SHA-256 digest, in hexadecimal
        self.size = size  # its size in bytes
        self._temporary = temporary

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._temporary:
            os.unlink(self.path)


def open_archive(path: str) -> Archive:
    try:
        with open(path, "rb") as file:
            if file.read(2) not in {b"PK", b"\x1f\x8b"}:
                raise ClientError(
                    f"workspace: {path} is neither a zip nor a tar.gz file", hint="Use the folder itself instead."
                )
            file.seek(0)
            return Archive(path, sha256(file), file.tell(), temporary=False)
    except OSError as error:
        raise ClientError(f"workspace: cannot read {path}: {error.strerror}", hint="Check the file.") from None


def write_archive(write: Callable[[gzip.GzipFile], None]) -> Archive:
    descriptor, path = tempfile.mkstemp(prefix="gradient-workspace-", suffix=".tar.gz")
    try:
        with open(descriptor, "wb") as raw:
            sink = _HashingWriter(raw)
            with gzip.GzipFile(filename="", mode="wb", fileobj=sink, compresslevel=_LEVEL, mtime=0) as packed:
                write(packed)
        return Archive(path, sink.digest.hexdigest(), sink.size, temporary=True)
    except BaseException as error:
        os.unlink(path)
        if isinstance(error, OSError):
            raise _disk_full(error) from None
        raise


def open_file(root: str, entry: WorkspaceEntry) -> BinaryIO:
    """Open a file of a workspace; of one that has grown since the scan, only its first `entry.size` bytes count."""
    try:
        # Neither follow nor block: since the scan, the file may have become a link or a pipe.
        descriptor = os.open(os.path.join(root, entry.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise ClientError(f"workspace: cannot read {entry.path}: {error.strerror}", hint=CHANGED_HINT) from None
    file = open(descriptor, "rb")  # noqa: SIM115 - the caller closes it
    size = os.fstat(descriptor).st_size
    if size < entry.size:
        file.close()
        raise changed_error(entry)
    if size > entry.size and not entry.grown:
        entry.grown = True
        path = terminal.sanitize(entry.path)
        terminal.print_message(f"workspace: {path} is being written to; its first {entry.size:,} bytes are sent")
    return file


def changed_error(entry: WorkspaceEntry) -> ClientError:
    return ClientError(f"workspace: {entry.path} changed while it was being packed", hint=CHANGED_HINT)


class _HashingWriter:
    """A file that tracks the digest and the size of the data written to it."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.digest = hashlib.sha256()
        self.size = 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        try:
            return self._file.write(data)
        except OSError as error:
            raise _disk_full(error) from None

    def flush(self) -> None:
        self._file.flush()


def _disk_full(error: OSError) -> ClientError:
    return ClientError(
        f"cannot write the archive in {tempfile.gettempdir()}: {error.strerror}",
        hint="Free disk space there, or set TMPDIR to a folder on another disk.",
    )


def _is_inside(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _raise_unreadable(unreadable: list[str]) -> None:
    if not unreadable:
        return
    named = ", ".join(sorted(unreadable)[:_MAX_NAMED])
    more = f" and {len(unreadable) - _MAX_NAMED} more" if len(unreadable) > _MAX_NAMED else ""
    raise ClientError(
        f"workspace: cannot read {format_count(len(unreadable), 'file')}: {named}{more}",
        hint="Fix the permissions, or exclude the files with a .gradientignore.",
    )


def describe_skipped(folder: WorkspaceFolder) -> Iterator[str]:
    """Yield a sentence for each skipped path, and for all that git ignores and all that are left out by default."""
    for path, why in folder.skipped[:_MAX_NAMED]:
        yield f"left out {path}: {why}"
    if len(folder.skipped) > _MAX_NAMED:
        yield f"left out {len(folder.skipped) - _MAX_NAMED} more"
    if folder.ignored:
        named = ", ".join(f"{path} ({rule})" for path, rule in folder.ignored[:_FEW])
        more = len(folder.ignored) - _FEW
        also = f" and {more} more" if more > 0 else ""
        yield f"left out {named}{also}, because git ignores them; --include PATTERN uploads such files"
    if folder.left_out:
        named, more = ", ".join(folder.left_out[:_MAX_NAMED]), len(folder.left_out) - _MAX_NAMED
        also = f" and {more} more" if more > 0 else ""
        yield f"left out {named}{also} by default; --include PATTERN uploads such files"
    if pointers := _find_pointers(folder):
        also = f" and {len(pointers) - _FEW} more" if len(pointers) > _FEW else ""
        yield f"{', '.join(pointers[:_FEW])}{also} are Git LFS pointers without contents: run `git lfs pull`"


def _find_pointers(folder: WorkspaceFolder) -> list[str]:
    """Return the files that stand for others that Git LFS has not fetched."""
    if not any(os.path.basename(entry.path) == ".gitattributes" for entry in folder.files):
        return []
    small = (entry.path for entry in folder.files if 0 < entry.size < _POINTER_BYTES)
    return [path for path in small if _begins_with(os.path.join(folder.root, path), _POINTER)]


def _begins_with(path: str, start: bytes) -> bool:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        return file.read(len(start)) == start
    return False
