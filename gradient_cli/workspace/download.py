"""Downloads of artifacts: resumed after an interruption, verified, and confined to the target folder."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

from gradient_cli import terminal
from gradient_cli.api.transport import retry
from gradient_cli.errors import ClientError
from gradient_cli.progress import Progress

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, BinaryIO

    from gradient_cli.api.client import Api

_DELAYS = (0.3, 1.0, 2.0, 4.0)
_PART_OF_FILE = 206


class DownloadFolder:
    """The folder that a job's files are downloaded into.

    Args:
        root: The folder; created with the first file.
        mark: Give the folder, if it does not exist yet, a `.gitignore` that keeps it out of git and of workspaces.
    """

    def __init__(self, root: str, *, mark: bool = False) -> None:
        self.root = root
        self._mark = mark and not os.path.lexists(root)

    def refuse_overwriting(self, files: Sequence[dict[str, Any]]) -> None:
        """Refuse the download if one of these files is there with other contents.

        Raises:
            ClientError: One is, or its path leads out of the folder.
        """
        for file in files:
            path = self._local_path(str(file["path"]))
            if os.path.exists(path) and not os.path.islink(path) and not _is_same(path, file.get("sha256")):
                raise ClientError(
                    f"{terminal.sanitize(path)} exists with other contents; nothing was downloaded",
                    hint="Choose another folder with --to, or overwrite such files with --force.",
                )

    def fetch(self, api: Api, job_id: str, file: dict[str, Any]) -> bool:
        """Download one file; return False if the same file was there already.

        Raises:
            ClientError: The path leads out of the folder, or the file cannot be written or arrives damaged.
        """
        path = self._local_path(str(file["path"]))
        digest = file.get("sha256")
        try:
            if _is_same(path, digest):
                return False
            os.makedirs(os.path.dirname(path), exist_ok=True)
            self._write_mark()
            self._check_inside(path, str(file["path"]))
            # Named after the digest: if the file has changed meanwhile, a part of the old one is not continued.
            name = f".{digest[:32]}.part" if digest else f".{os.urandom(16).hex()}.part"
            part = os.path.join(os.path.dirname(path), name)
            _Download(api, job_id, file, part).run()
            os.replace(part, path)
        except OSError as error:
            raise ClientError(
                f"cannot write {terminal.sanitize(path)}: {error.strerror}",
                hint="Free disk space, then repeat the download, which resumes; or choose another folder with --to.",
            ) from None
        return True

    def _local_path(self, path: str) -> str:
        parts = path.split("/")
        if not path or "\0" in path or "\\" in path or any(part in {"", ".", ".."} for part in parts):
            raise _outside_error(path)
        return os.path.join(self.root, *parts)

    def _write_mark(self) -> None:
        if self._mark:
            self._mark = False
            with open(os.path.join(self.root, ".gitignore"), "x", encoding="utf-8") as file:
                file.write("*\n")

    def _check_inside(self, place: str, path: str) -> None:
        root, folder = os.path.realpath(self.root), os.path.realpath(os.path.dirname(place))
        if folder != root and not folder.startswith(root.rstrip("/") + "/"):
            raise _outside_error(path)


class _Download:
    """The download of one file into its part file."""

    def __init__(self, api: Api, job_id: str, file: dict[str, Any], part: str) -> None:
        self._api = api
        self._job_id = job_id
        self._path = str(file["path"])
        self._digest = file.get("sha256")
        self._part = part
        self._size = int(file["size"])
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
            if self._digest is None:
                with suppress(FileNotFoundError):
                    os.unlink(self._part)  # without a digest, a part cannot be verified
            raise
        finally:
            self._progress.close()

    def _refuse_damaged(self) -> None:
        if self._damaged():
            os.unlink(self._part)
            raise ClientError(
                f"{terminal.sanitize(self._path)} arrived damaged twice: its SHA-256 differs from the listed one",
                hint="If the job still writes the file, wait for its end; else check the proxies on the way.",
            )

    def _damaged(self) -> bool:
        return self._digest is not None and _digest(self._part) != self._digest

    def _transfer(self) -> None:
        descriptor = os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        with open(descriptor, "r+b") as file:
            have = file.seek(0, os.SEEK_END) if self._digest else 0
            if self._digest and have and have >= self._size:
                return
            self._receive(file, have)

    def _receive(self, file: BinaryIO, have: int) -> None:
        response = self._api.artifact(self._job_id, self._path, offset=have, etag=self._digest or "")
        if response.status != _PART_OF_FILE:
            have = 0
        file.seek(have)
        file.truncate()
        try:
            for chunk in self._api.chunks(response):
                file.write(chunk)
                have += len(chunk)
                self._progress.update(have)
        except BaseException:
            self._api.close()  # the rest of this response must not be read as the next one
            raise


def _is_same(path: str, digest: str | None) -> bool:
    """Return whether a regular file with this digest is there."""
    return bool(digest) and os.path.isfile(path) and not os.path.islink(path) and _digest(path) == digest


def _digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _outside_error(path: str) -> ClientError:
    return ClientError(
        f"artifact {path!r} would be written outside of the folder",
        hint="It was not downloaded; choose another folder with --to, or name other files.",
    )
