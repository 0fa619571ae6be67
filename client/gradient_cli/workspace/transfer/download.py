"""Downloads of files: resumed after an interruption, verified, and confined to the target folder."""

from __future__ import annotations

import fnmatch
import hashlib
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from http.client import HTTPResponse
from typing import Any, BinaryIO

from gradient_cli import terminal
from gradient_cli.api.client import Api
from gradient_cli.api.retries import retry
from gradient_cli.errors import ClientError, ServerError
from gradient_cli.formatting import describe_removed
from gradient_cli.workspace.packing.digest import sha256
from gradient_cli.workspace.transfer.progress import Progress
from gradient_cli.workspace.transfer.public_names import to_local_name
from gradient_cli.workspace.transfer.storage_transfer import StoredFiles, set_time

_DELAYS = (0.3, 1.0, 2.0, 4.0)
_PART_OF_FILE = 206
# Files up to this size are downloaded many in each request; larger ones one by one, so that they can be resumed.
_SMALL_BYTES = 1 << 20
_BATCH = 5000
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW


class JobFiles:
    """A job's artifacts: the same file, and an intact one, has the same SHA-256."""

    ELSEWHERE = "another folder with --to"

    def __init__(self, api: Api, job_id: str) -> None:
        self.api = api
        self._job_id = job_id

    def open(self, path: str, offset: int, etag: str) -> HTTPResponse:
        return self.api.artifact(self._job_id, path, offset=offset, etag=etag)

    def etag(self, file: dict[str, Any]) -> str | None:
        """Return what identifies the file's content, if it is known."""
        return file.get("sha256")

    def open_many(self, files: Sequence[dict[str, Any]]) -> HTTPResponse:
        """Open files of an ended job at once, their bytes joined in the order of the list."""
        return self.api.artifact_contents(self._job_id, [file["path"] for file in files])

    def is_same(self, path: str, file: dict[str, Any]) -> bool:
        digest = file.get("sha256")
        return bool(digest) and os.path.isfile(path) and not os.path.islink(path) and _digest(path) == digest

    def finish(self, path: str, file: dict[str, Any]) -> None:
        """Give a downloaded file its permissions and its time."""
        os.chmod(path, file["mode"] | stat.S_IRUSR)
        set_time(path, file["modified"])


def download(
    api: Api, job_id: str, listing: dict[str, Any], patterns: Sequence[str], *, to: str | None, force: bool
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], DownloadFolder]:
    """Download artifacts and verify their checksums.

    Returns the files that the patterns match, those of them that were downloaded, and the folder.

    Args:
        patterns: Files or folders to download; none: all.
        to: The folder; None: `artifacts-ID`.
        force: Overwrite files in `to` that have other contents.
    """
    if listing.get("removed"):
        clone = f"`gradient-cli jobs clone {terminal.sanitize(job_id)}` runs the job again."
        raise ClientError(describe_removed(listing["removed"]), hint=clone)
    files, folders = select(listing["files"], listing.get("folders") or [], patterns)
    # The folder's usual name is known to `jobs create`, which does not upload it; another one is marked.
    target = DownloadFolder(to or f"artifacts-{job_id}", JobFiles(api, job_id), mark=bool(to))
    if to and not force:
        target.refuse_overwriting(files)
    at_once = target.fetch_small(files)
    got = [file for file in files if file["path"] in at_once or target.fetch(file)]
    target.make_folders(folders)
    return files, got, target


class DownloadFolder:
    """The folder that files are downloaded into.

    Args:
        root: The folder; created with the first file.
        mark: Give the folder, if it does not exist yet, a `.gitignore` that keeps it out of git and of workspaces.
    """

    def __init__(self, root: str, source: JobFiles | StoredFiles, *, mark: bool = False) -> None:
        self.root = root
        self._source = source
        self._mark = mark and not os.path.lexists(root)
        self.left_out: dict[str, str] = {}  # why, by path
        self._paths: dict[tuple[int, int], str] = {}  # of what this download has, by device and inode

    def refuse_overwriting(self, files: Sequence[dict[str, Any]]) -> None:
        for file in files:
            path = self.local_path(str(file["path"]))
            if os.path.exists(path) and not os.path.islink(path) and not self._source.is_same(path, file):
                raise ClientError(
                    f"{terminal.sanitize(path)} exists with other contents; nothing was downloaded",
                    hint=f"Choose {self._source.ELSEWHERE}, or overwrite such files with --force.",
                )

    def fetch(self, file: dict[str, Any], name: str | None = None) -> bool:
        """Download one file; return False if the same file was there already.

        `name`: its path below this folder, of public names, if it is not the one on the server.
        """
        path = self.local_path(name or str(file["path"]))
        etag = self._source.etag(file)
        try:
            if self._leaves_out(path, file):
                return False
            if self._source.is_same(path, file):
                self._remember(path, file)
                return False
            self._make_folder(path, str(file["path"]))
            # Named after the content: if the file has changed meanwhile, a part of the old one is not continued.
            part = os.path.join(os.path.dirname(path), f".{etag[:32] if etag else os.urandom(16).hex()}.part")
            _Download(self._source, file, part).run()
            self._place(part, path, file)
        except OSError as error:
            raise self._write_error(path, error) from None
        return True

    def _place(self, part: str, path: str, file: dict[str, Any]) -> None:
        self._source.finish(part, file)
        os.replace(part, path)
        self._remember(path, file)

    def _remember(self, path: str, entry: dict[str, Any]) -> None:
        status = os.lstat(path)
        if status.st_nlink == 1 or stat.S_ISDIR(status.st_mode):  # files with two links have two names
            self._paths[status.st_dev, status.st_ino] = str(entry["path"])

    def _leaves_out(self, path: str, entry: dict[str, Any]) -> bool:
        """Return whether another entry of this download is at this path, in a file system that ignores case."""
        try:
            status = os.lstat(path)
        except OSError:
            return False
        name = str(entry["path"])
        other = self._paths.get((status.st_dev, status.st_ino), name)
        if other != name:
            self.left_out[name] = f"this file system does not distinguish its name from {other}"
        return other != name

    def make_folders(self, folders: Sequence[dict[str, Any]]) -> None:
        """Make the folders that are not there yet, and give all of them their permissions and times.

        Innermost first, and after the files: each changes the time of the folder that it is in.
        """
        for folder in sorted(folders, key=lambda folder_entry: -str(folder_entry["path"]).count("/")):
            path = self.local_path(str(folder["path"]))
            try:
                if self._leaves_out(path, folder):
                    continue
                self._make_folder(os.path.join(path, "x"), str(folder["path"]))
                self._remember(path, folder)
                if "mode" in folder:
                    os.chmod(path, folder["mode"] | stat.S_IRWXU)
                set_time(path, folder["modified"])
            except OSError as error:
                raise self._write_error(path, error) from None

    def fetch_small(self, files: Sequence[dict[str, Any]]) -> set[str]:
        """Download the small files that are not there yet, many in each request, and return their paths.

        Those that do not arrive intact in this way are left for `fetch`.
        """
        source = self._source
        if not isinstance(source, JobFiles):
            return set()
        small = [
            file
            for file in files
            if file.get("sha256")
            and file["size"] <= _SMALL_BYTES
            and not os.path.lexists(self.local_path(str(file["path"])))
        ]
        got: set[str] = set()
        for start in range(0, len(small), _BATCH):
            batch = small[start : start + _BATCH]
            try:
                retry(partial(self._fetch_batch, source, batch, got), _DELAYS)
            except ServerError:  # a file was deleted: `fetch` tells which
                break
        return got

    def _fetch_batch(self, source: JobFiles, files: Sequence[dict[str, Any]], got: set[str]) -> None:
        """Download those files that are not in `got` in one request, up to the first that is not intact."""
        files = [file for file in files if file["path"] not in got]
        chunks = source.api.chunks(source.open_many(files))
        pending = bytearray()
        checked = ""
        try:
            for file in files:
                path, size = self.local_path(str(file["path"])), int(file["size"])
                while len(pending) < size and (chunk := next(chunks, b"")):
                    pending += chunk
                data = bytes(pending[:size])
                del pending[:size]
                if hashlib.sha256(data).hexdigest() != file["sha256"]:
                    source.api.close()  # the rest of this response must not be read as the next one
                    return
                folder = os.path.dirname(path)
                if folder != checked:
                    self._make_folder(path, str(file["path"]))
                    checked = folder
                part = os.path.join(folder, f".{file['sha256'][:32]}.part")
                if not self._leaves_out(path, file):
                    _write(part, data)
                    self._place(part, path, file)
                    got.add(file["path"])
            for _ in chunks:
                pass
        except OSError as error:
            source.api.close()
            raise self._write_error(path, error) from None
        except BaseException:
            source.api.close()
            raise

    def print_left_out(self) -> None:
        for path, why in self.left_out.items():
            terminal.print_message(f"left out: {terminal.sanitize(f'{path}: {why}')}")

    def _make_folder(self, path: str, name: str) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if self._mark:
            self._mark = False
            with open(os.path.join(self.root, ".gitignore"), "x", encoding="utf-8") as file:
                file.write("*\n")
        root, folder = os.path.realpath(self.root), os.path.realpath(os.path.dirname(path))
        if folder != root and not folder.startswith(root.rstrip("/") + "/"):
            raise _outside_error(name)

    def _write_error(self, path: str, error: OSError) -> ClientError:
        return ClientError(
            f"cannot write {terminal.sanitize(path)}: {error.strerror}",
            hint=f"Free disk space, then repeat the download, which resumes; or choose {self._source.ELSEWHERE}.",
        )

    def local_path(self, path: str) -> str:
        """Return where the file with this path is written: below the root, with the local names of its parts."""
        parts = path.split("/")
        if not path or "\0" in path or "\\" in path or any(part in {"", ".", ".."} for part in parts):
            raise _outside_error(path)
        return os.path.join(self.root, *map(to_local_name, parts))


class _Download:
    def __init__(self, source: JobFiles | StoredFiles, file: dict[str, Any], part: str) -> None:
        self._source = source
        self._path = str(file["path"])
        self._digest = file.get("sha256")
        self._etag = source.etag(file)
        self._part = part
        self._size = int(file["size"])
        self._received: str | None = None  # digest of all that was written, if it came in one response
        self._progress = Progress(terminal.sanitize(self._path), self._size, quiet=True)

    def run(self) -> None:
        """Download and verify the file, resuming what a broken connection left."""
        try:
            retry(self._transfer, _DELAYS)
            if self._damaged():  # the part left by an earlier attempt may have been damaged
                os.unlink(self._part)
                retry(self._transfer, _DELAYS)
                self._refuse_damaged()
        except BaseException:
            if self._etag is None:
                with suppress(FileNotFoundError):
                    os.unlink(self._part)  # nothing would show that it is a part of the same content
            raise
        finally:
            self._progress.close()

    def _refuse_damaged(self) -> None:
        if self._damaged():
            os.unlink(self._part)
            raise ClientError(
                f"{terminal.sanitize(self._path)} arrived damaged twice: its SHA-256 differs from the listed one",
                hint="If the job is still writing the file, wait until it ends; otherwise check the proxies between "
                "here and the server.",
            )

    def _damaged(self) -> bool:
        return self._digest is not None and (self._received or _digest(self._part)) != self._digest

    def _transfer(self) -> None:
        descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with open(descriptor, "r+b") as file:
            have = file.seek(0, os.SEEK_END) if self._etag else 0
            if self._etag and have and have >= self._size:
                return
            self._receive(file, have)

    def _receive(self, file: BinaryIO, have: int) -> None:
        response = self._source.open(self._path, have, self._etag or "")
        if response.status != _PART_OF_FILE:
            have = 0
        file.seek(have)
        file.truncate()
        whole, digest = have == 0, hashlib.sha256()
        self._received = None
        try:
            for chunk in self._source.api.chunks(response):
                file.write(chunk)
                digest.update(chunk)
                have += len(chunk)
                self._progress.update(have)
        except BaseException:
            self._source.api.close()  # the rest of this response must not be read as the next one
            raise
        self._received = digest.hexdigest() if whole else None


def _write(path: str, data: bytes) -> None:
    """Write a small file, in about half the time that a file object takes."""
    descriptor = os.open(path, _CREATE, 0o666)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def select(
    files: list[dict[str, Any]], folders: list[dict[str, Any]], patterns: Sequence[str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the files and the folders that match any of these patterns; a folder stands for all of it.

    No pattern stands for all.
    """
    if not patterns:
        return files, folders
    chosen: dict[str, dict[str, Any]] = {}
    for pattern in patterns:
        clean = pattern.removeprefix("./").rstrip("/")
        hits = [
            entry
            for entry in (*files, *folders)
            if f"{entry['path']}/".startswith(f"{clean}/")  # a name may have brackets, which are wildcards, too
            or fnmatch.fnmatchcase(entry["path"], clean)
            or fnmatch.fnmatchcase(entry["path"], f"{clean}/*")
        ]
        if not hits:
            raise ClientError(
                f"no artifact matches {pattern!r}",
                hint="`gradient-cli jobs artifacts list` lists them; quote patterns so that the shell does not "
                "expand them.",
            )
        chosen.update((entry["path"], entry) for entry in hits)
    above = {parent for path in chosen for parent in _parents(path)}
    return (
        [file for file in files if file["path"] in chosen],
        [folder for folder in folders if folder["path"] in chosen or folder["path"] in above],
    )


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return sha256(file)


def _outside_error(path: str) -> ClientError:
    return ClientError(
        f"{path!r} would be written outside the folder",
        hint="It was not downloaded; choose another folder, or name other files.",
    )
