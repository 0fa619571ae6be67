"""Downloads the objects below a prefix into a folder, repeatedly; only new or changed ones are fetched."""

import errno
import json
import os
import secrets
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from google.api_core.exceptions import NotFound, PreconditionFailed
from google.cloud import storage

from core.errors import StoreUnavailable
from core.storage.artifacts.scan import Skipped
from core.system.filesystem import write_atomically
from core.system.untrusted_folders import MAX_DEPTH, NOT_A_FOLDER, OPEN_FOLDER, opened_beneath, opened_folder
from worker.backends.tpu.storage.errors import translate_bucket_errors

_NO_FOLDER = "the job replaced the folder by something else, so nothing was downloaded from the bucket"
_BLOCKED = "something else with that name is in the artifacts folder"
_NAME_BYTES = 255


class ObjectPlan(NamedTuple):
    """Objects to download. `wanted`: relative path to the object that becomes that file; ordered by path."""

    wanted: dict[str, storage.Blob]
    skipped: list[Skipped]


def plan_objects(blobs: Iterable[storage.Blob], prefix: str) -> ObjectPlan:
    """Split objects into those that can be files below a folder, and those that cannot: names are not trusted."""
    wanted: dict[str, storage.Blob] = {}
    skipped: list[Skipped] = []
    for blob in blobs:
        path = blob.name.removeprefix(prefix)
        if not path or (path.endswith("/") and not blob.size):
            continue  # an empty folder marker
        why = _reject_reason(path)
        if why is None:
            wanted[path] = blob
        else:
            skipped.append(Skipped(path, why))
    folders = {path[:end] for path in wanted for end in [index for index, letter in enumerate(path) if letter == "/"]}
    for path in sorted(wanted.keys() & folders):
        # The folder may hold many objects: it wins over the single one.
        skipped.append(Skipped(path, "other objects use it as a folder"))
        del wanted[path]
    return ObjectPlan(dict(sorted(wanted.items())), skipped)


def _reject_reason(path: str) -> str | None:
    parts = path.split("/")
    reasons = (
        (path.startswith("/"), "its name begins with a slash"),
        (path.endswith("/"), "its name ends with a slash, so it would be a folder"),
        ("" in parts, "its name has two slashes in a row"),
        (not {".", ".."}.isdisjoint(parts), "its name leads out of its folder"),
        ("\0" in path, "its name contains a NUL"),
        (any(len(os.fsencode(part)) > _NAME_BYTES for part in parts), f"a part of it is over {_NAME_BYTES} bytes long"),
        (len(parts) > MAX_DEPTH, f"it is more than {MAX_DEPTH} folders deep"),
    )
    return next((why for true, why in reasons if true), None)


@dataclass(frozen=True)
class DownloadResult:
    """Result of mirroring a prefix to a folder."""

    files: int
    bytes: int
    skipped: tuple[Skipped, ...]  # objects that could not be downloaded, and why
    changing: int  # objects that were replaced or removed while they were fetched; the next run may find them stable


class OutputDownloader:
    """One prefix and the folder it is downloaded to.

    A file is fetched to a separate folder, verified by crc32c and then renamed into place. The job can write to the
    target folder too: no link in it is followed, nor the folder itself if it is a link.

    Args:
        into: The target folder; created if missing.
        aside: A private folder on the same file system, which the job cannot write to.
    """

    def __init__(self, bucket: storage.Bucket, prefix: str, into: Path, aside: Path, parallel: int) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._into = into
        self._parallel = parallel
        self._arriving = aside / "arriving"
        self._record = aside / "brought.json"

    def run(self) -> DownloadResult:
        """Download new or changed objects, and remove files whose object was deleted."""
        with translate_bucket_errors(self._bucket.name, "listing"):
            plan = plan_objects(self._bucket.list_blobs(prefix=self._prefix), self._prefix)
        self._arriving.mkdir(parents=True, exist_ok=True, mode=0o700)
        for left in self._arriving.iterdir():
            left.unlink(missing_ok=True)  # partial files of a killed run
        try:
            self._into.mkdir(mode=0o700, exist_ok=True)
            opened = os.open(self._into, OPEN_FOLDER)
        except OSError as error:
            if error.errno not in {*NOT_A_FOLDER, errno.EEXIST}:
                raise
            return DownloadResult(0, 0, (*plan.skipped, Skipped(self._into.name, _NO_FOLDER)), 0)
        try:
            with opened_folder(self._arriving) as arriving:
                return self._download(plan, opened, arriving)
        finally:
            os.close(opened)

    def _download(self, plan: ObjectPlan, folder: int, arriving: int) -> DownloadResult:
        generations = self._read_generations()
        placing = _FilePlacer(folder, arriving)
        for path in generations.keys() - plan.wanted.keys():
            placing.remove(path)
        kept = {path: blob for path, blob in plan.wanted.items() if placing.has_file(path, generations.get(path), blob)}
        due = [(path, blob) for path, blob in plan.wanted.items() if path not in kept]
        skipped, moving, failure = list(plan.skipped), 0, None
        with ThreadPoolExecutor(self._parallel, thread_name_prefix="mirror") as pool:
            fetched = pool.map(lambda item: _result_or_error(lambda: self._fetch(item[1], arriving)), due)
            for (path, blob), outcome in zip(due, fetched, strict=True):
                if isinstance(outcome, Exception):
                    failure = outcome
                elif outcome is None:
                    moving += 1
                elif (why := placing.place(outcome, path)) is not None:
                    skipped.append(Skipped(path, why))
                else:
                    kept[path] = blob
        self._write_generations({path: blob.generation for path, blob in kept.items()})
        if failure is not None:
            raise failure
        return DownloadResult(len(kept), sum(blob.size for blob in kept.values()), tuple(sorted(skipped)), moving)

    def _fetch(self, blob: storage.Blob, arriving: int) -> str | None:
        """Fetch one object under a random name; return None if it is no longer the listed generation."""
        name = secrets.token_hex(16)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, 0o600, dir_fd=arriving), "wb") as file:
            try:
                with translate_bucket_errors(self._bucket.name, f"reading {blob.name!r}"):
                    try:
                        blob.download_to_file(
                            file, if_generation_match=blob.generation, raw_download=True, checksum="crc32c"
                        )
                    except (NotFound, PreconditionFailed):
                        return None
            except BaseException:
                os.unlink(name, dir_fd=arriving)
                raise
            file.flush()
            written = int(blob.updated.timestamp() * 1e9)
            os.utime(file.fileno(), ns=(written, written))
        return name

    def _read_generations(self) -> dict[str, int]:
        """Return the generations of the objects downloaded earlier, by path."""
        with suppress(FileNotFoundError, ValueError):
            generations: dict[str, int] = json.loads(self._record.read_text())
            return generations
        return {}

    def _write_generations(self, generations: dict[str, int]) -> None:
        write_atomically(self._record, json.dumps(generations).encode(), durable=False)


def _result_or_error(fetch: Callable[[], str | None]) -> str | Exception | None:
    """Run a fetch and return its result or error: one failure must not prevent placing the others."""
    try:
        return fetch()
    except (StoreUnavailable, OSError) as error:
        return error


class _FilePlacer:
    """Moves fetched files to their paths in a folder that the job writes to as well."""

    def __init__(self, folder: int, arriving: int) -> None:
        self._folder = folder
        self._arriving = arriving
        self._placed: dict[int, str] = {}

    def has_file(self, path: str, generation: int | None, blob: storage.Blob) -> bool:
        status = self._status(path)
        if generation != blob.generation or status is None or status.st_size != blob.size:
            return False
        self._placed[status.st_ino] = path
        return True

    def place(self, name: str, path: str) -> str | None:
        """Rename a fetched file to its path; return the reason if that is impossible."""
        *parents, last = path.split("/")
        try:
            with opened_beneath(self._folder, parents, create=True) as folder:
                there = self._status(path)
                if there is not None and (other := self._placed.get(there.st_ino)) not in {None, path}:
                    # If the file system treats two names as one, neither may overwrite the other.
                    return self._discard(name, f"this file system does not distinguish its name from {other!r}")
                os.rename(name, last, src_dir_fd=self._arriving, dst_dir_fd=folder)
                self._placed[os.stat(last, dir_fd=folder, follow_symlinks=False).st_ino] = path
        except OSError as error:
            if error.errno not in {*NOT_A_FOLDER, errno.EISDIR}:
                raise
            return self._discard(name, _BLOCKED)
        return None

    def remove(self, path: str) -> None:
        """Remove a file that was downloaded earlier, unless something else is there now."""
        *parents, last = path.split("/")
        with suppress(OSError), opened_beneath(self._folder, parents) as folder:
            os.unlink(last, dir_fd=folder)

    def _discard(self, name: str, why: str) -> str:
        os.unlink(name, dir_fd=self._arriving)
        return why

    def _status(self, path: str) -> os.stat_result | None:
        *parents, last = path.split("/")
        with suppress(OSError), opened_beneath(self._folder, parents) as folder:
            return os.stat(last, dir_fd=folder, follow_symlinks=False)
        return None
