"""Uploaded files of a project's storage, copied to a host from the service or from a bucket."""

import fcntl
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Protocol

from sqlalchemy import exists, select

from core.db.models.jobs import Job
from core.errors import SpecInvalid, StoreUnavailable
from core.formatting import format_bytes
from core.jobs.states import OWNED
from core.jobs.tracking import job_notes
from core.storage.shared.folders import SharedStorage
from core.storage.shared.project_files import ProjectFiles, StoredEntry, Upload
from core.storage.shared.uploaded_files import UploadedFiles
from core.system.filesystem import describe_shortage
from worker.backends.base import LaunchError
from worker.context import WorkerContext
from worker.service_link.link import Refused, ServiceLink

_PAGE = 10_000
_BLOCK_BYTES = 1 << 20
_SECONDS = 120.0  # the service may list a million files
_PAUSE_SECONDS = 2.0
_WAIT_SECONDS = 0.2
_REPORT_SECONDS = 2.0
_GIVE_UP_SECONDS = 900.0


def fetch_storage(
    context: WorkerContext, job: Job, check: Callable[[], None], report: Callable[[str, str], None]
) -> None:
    """Fetch the uploaded files of a job's project that this host lacks, where they are stored elsewhere.

    Args:
        check: Raises if the job must not start.
        report: Shows a phase and its detail on the job's page.
    """
    if context.link is not None:
        _Fetch(context, _Service(context.link, job), job, check, report).run()
    elif context.storage.uploaded is not None:
        _Fetch(context, _Bucket(context.storage.uploaded, job.project_id), job, check, report).run()


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


class _Source(Protocol):
    """The place of the files. `unknown_there`: it may have others, and cannot tell which."""

    unknown_there: bool

    def list(self) -> Iterator[StoredEntry]: ...
    def open(self, entry: StoredEntry, offset: int) -> AbstractContextManager[_Readable]: ...


class _Service:
    def __init__(self, link: ServiceLink, job: Job) -> None:
        self._link = link
        self._path = f"jobs/{job.id}/{job.attempt}/storage"
        self.unknown_there = False

    def list(self) -> Iterator[StoredEntry]:
        after: str | None = ""
        while after is not None:
            query = {"after": after or None, "limit": _PAGE}
            page = self._link.read_json("GET", self._path, query=query, seconds=_SECONDS)
            self.unknown_there |= page["unknown"]
            yield from (StoredEntry(**entry) for entry in page["entries"])
            after = page["next"]

    def open(self, entry: StoredEntry, offset: int) -> AbstractContextManager[_Readable]:
        return self._link.open_file(f"{self._path}/file", {"file": entry.path}, offset=offset)


class _Bucket:
    unknown_there = False

    def __init__(self, uploaded: UploadedFiles, project_id: str) -> None:
        self._uploaded = uploaded
        self._project_id = project_id

    def list(self) -> Iterator[StoredEntry]:
        return map(StoredEntry.of_uploaded, self._uploaded.walk(self._project_id))

    @contextmanager
    def open(self, entry: StoredEntry, offset: int) -> Iterator[_Readable]:
        uploaded_file = self._uploaded.find(self._project_id, entry.path)
        if uploaded_file is None:
            raise Refused(f"{entry.path} was deleted while it was fetched.")
        with self._uploaded.open(uploaded_file) as file:
            file.seek(offset)
            yield file


class _Fetch:
    """Copies of uploaded files: fetched when the first job needs them, deleted when the disk is short.

    What jobs write is this host's own, also where it takes the place of an uploaded file.
    """

    def __init__(
        self,
        context: WorkerContext,
        source: _Source,
        job: Job,
        check: Callable[[], None],
        report: Callable[[str, str], None],
    ) -> None:
        self._context = context
        self._source = source
        self._storage = SharedStorage(context.settings.root / "storage")
        self._job = job
        self._project = job.project_id
        self._check = check
        self._report = report
        self._reported_at = float("-inf")

    def run(self) -> None:
        files = ProjectFiles(self._storage, self._project)
        with self._locked():
            here = {entry.path: entry for entry in _entries(files)}
            there = {entry.path: entry for entry in self._source.list()}
            if self._source.unknown_there or (there and not files.keeps_digests()):
                where = (
                    "The service's GRADIENT_HOME" if self._source.unknown_there else "GRADIENT_HOME of the job's host"
                )
                what = "are not in /storage here" if self._source.unknown_there else "are not updated in /storage"
                text = (
                    f"{where} is on a file system without extended attributes, so files stored with `storage put` "
                    f"{what}. The operator can move it, for example to ext4 or XFS."
                )
                self._context.write(partial(job_notes.add, job=self._job, text=text))
            for entry in here.values():
                if entry.is_copy and entry.path not in there:
                    files.remove(entry.path)
            lacking = [entry for entry in there.values() if _lacks(here.get(entry.path), entry)]
            self._make_room(sum(entry.size or 0 for entry in lacking))
            for entry in lacking:
                with (
                    suppress(SpecInvalid),
                    closing(files.receive(entry.path)) as upload,
                ):  # else a job's folder is there
                    self._fetch(entry, upload)

    def _tell(self, text: str) -> None:
        self._check()
        if time.monotonic() > self._reported_at + _REPORT_SECONDS:
            self._report("provisioning", text)
            self._reported_at = time.monotonic()

    def _fetch(self, entry: StoredEntry, upload: Upload) -> None:
        size, give_up_at = entry.size or 0, time.monotonic() + _GIVE_UP_SECONDS
        while upload.size < size:
            try:
                with self._source.open(entry, upload.size) as answer:
                    while block := answer.read(_BLOCK_BYTES):
                        upload.write(block)
                        give_up_at = time.monotonic() + _GIVE_UP_SECONDS
                        self._tell(f"fetching {entry.path}: {format_bytes(upload.size)} of {format_bytes(size)}")
                break
            except Refused:
                raise
            except StoreUnavailable as error:  # it goes on where it broke off
                if time.monotonic() > give_up_at:
                    raise
                self._tell(f"fetching {entry.path}: {error.message}")
                time.sleep(_PAUSE_SECONDS)
        try:
            upload.commit(sha256=entry.sha256, mtime_ms=entry.mtime_ms, is_copy=True, executable=entry.executable)
        except SpecInvalid as error:  # it has just been replaced
            raise StoreUnavailable(f"{entry.path} changed while it was being fetched; it is fetched again.") from error

    def _make_room(self, size: int) -> None:
        """Delete copies of projects without jobs here, those first whose last job is longest ago."""
        min_free_mb = self._context.settings.disk.min_free_mb
        self._storage.incoming.mkdir(parents=True, exist_ok=True, mode=0o700)
        for marker in sorted(self._markers.iterdir(), key=lambda path: path.stat().st_mtime):
            short = describe_shortage([self._storage.incoming], min_free_mb, coming=size)
            if short is None:
                return
            with marker.open() as other, suppress(BlockingIOError):
                fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not self._is_used(marker.name):  # asked with the lock: its next job fetches what is missing
                    files = ProjectFiles(self._storage, marker.name)
                    for entry in list(_entries(files)):
                        if entry.is_copy:
                            files.remove(entry.path)
        short = describe_shortage([self._storage.incoming], min_free_mb, coming=size)
        if short is not None:
            raise LaunchError(
                "disk_full", f"there is no room for the project's storage ({format_bytes(size)}) here: {short}"
            )

    def _is_used(self, project_id: str) -> bool:
        context = self._context
        wanted = exists().where(Job.project_id == project_id, Job.state.in_(OWNED))
        if context.link is not None:  # no other worker has this folder
            wanted = wanted.where(Job.worker == context.worker_name)
        with context.database.read() as session:
            return bool(session.scalar(select(wanted)))

    @property
    def _markers(self) -> Path:
        """A file for each project that was fetched, with the time of the last job."""
        return self._context.settings.root / "storage" / "fetched"

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self._markers.mkdir(parents=True, exist_ok=True, mode=0o700)
        marker = self._markers / self._project
        with marker.open("w") as locked:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(locked, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                self._tell("another job is fetching the project's storage")
                time.sleep(_WAIT_SECONDS)
            marker.touch()
            yield


def _entries(files: ProjectFiles) -> Iterator[StoredEntry]:
    after: str | None = None
    while True:
        page = files.page("", recursive=True, after=after, limit=_PAGE)
        yield from (entry for entry in page.entries if entry.kind == "file")
        after = page.next
        if after is None:
            return


def _lacks(here: StoredEntry | None, there: StoredEntry) -> bool:
    """Return whether an uploaded file is fetched: it is not here, or here is an earlier one, as it was fetched."""
    return here is None or here.sha256 not in {None, there.sha256}
