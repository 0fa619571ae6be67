"""Files that clients stored for the jobs of a project, where these are in a bucket: an object and a row for each.

An object is sent before its row gets a path, and deleted after the row has lost it: only what has a path is ever read.
"""

import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import BinaryIO, NamedTuple, Protocol

from sqlalchemy import ColumnElement, and_, delete, exists, func, select, update
from sqlalchemy.orm import Session

from core.db.database import Database, now
from core.db.models.jobs import Project
from core.db.models.uploads import UploadedFile
from core.errors import SpecInvalid, StoreUnavailable
from core.ids import new_id

logger = logging.getLogger(__name__)

BATCH = 1000
_ABANDONED_SECONDS = 86_400.0  # no file takes longer to send
_SIGNED_FOR = timedelta(minutes=15)  # to begin a transfer, however long it takes
_MAX_PATH_BYTES = 2000  # PostgreSQL's index takes 2,700


class Objects(Protocol):
    """The bucket; see `core.storage.buckets.files.BucketFiles`."""

    def put(self, name: str, file: BinaryIO, path: str) -> str: ...
    def open(self, name: str) -> BinaryIO | None: ...
    def sign(self, name: str, valid: timedelta) -> str | None: ...
    def remove(self, names: Sequence[str]) -> None: ...


class Uploaded(NamedTuple):
    path: str
    size: int  # bytes
    sha256: str
    mtime_ms: int  # time of its last change on the client's machine, in Unix milliseconds
    name: str  # of its object


class UploadedFiles:
    def __init__(self, database: Database, objects: Objects) -> None:
        self._database = database
        self._objects = objects

    def check_path(self, project_id: str, path: str) -> None:
        """Check that a file can be stored at a path: it is no folder, and below no file."""
        with self._database.read() as session:
            _check_path(session, project_id, path)

    def store(self, project_id: str, path: str, file: BinaryIO, *, size: int, sha256: str, mtime_ms: int) -> None:
        """Send a file, and give it its path, replacing another file there.

        Raises `StoreUnavailable`: the bucket does not answer; nothing has changed for readers.
        """
        row = UploadedFile(id=new_id("f"), project_id=project_id, size=size, sha256=sha256, mtime_ms=mtime_ms)
        row.remove_at = now(_ABANDONED_SECONDS)
        with self._database.write() as session:
            session.add(row)
        if self._objects.put(f"{project_id}/{row.id}", file, path) != sha256:
            raise StoreUnavailable(f"{path[:200]!r} changed on the service's disk before it was sent. Send it again.")
        at_path = and_(UploadedFile.project_id == project_id, UploadedFile.key == _key(path))
        with self._database.write() as session:
            session.execute(select(Project.id).where(Project.id == project_id).with_for_update())
            _check_path(session, project_id, path)
            replaced = _take_paths(session, at_path)
            kept = update(UploadedFile).where(UploadedFile.id == row.id, UploadedFile.remove_at > now())
            if session.scalar(kept.values(key=_key(path)).returning(UploadedFile.id)) is None:
                raise StoreUnavailable(f"{path[:200]!r} took more than a day to store. Send it again.")
        self._remove_now(project_id, replaced)

    def find(self, project_id: str, path: str) -> Uploaded | None:
        at_path = UploadedFile.project_id == project_id, UploadedFile.key == _key(path)
        with self._database.read() as session:
            row = session.scalar(select(UploadedFile).where(*at_path))
        return None if row is None else _uploaded(row)

    def walk(
        self, project_id: str, path: str = "", after: str | None = None, *, level: int | None = None
    ) -> Iterator[Uploaded]:
        """Yield the files in a folder and its folders, in order of their folders' and their own names.

        Args:
            path: The folder's path; empty: the whole storage.
            after: The path of the last file or folder that is left out.
            level: Of paths with more parts only some are needed, those of the first file in each folder among them.
        """
        below = _key(path) + b"\0" if path else b""
        start = max(below, b"" if after is None else _key(after))
        while True:
            of_folder = [UploadedFile.project_id == project_id, UploadedFile.key > start]
            if below:
                of_folder.append(UploadedFile.key < below[:-1] + b"\1")
            query = select(UploadedFile).where(*of_folder).order_by(UploadedFile.key).limit(BATCH)
            with self._database.read() as session:
                rows = list(session.scalars(query))
            yield from map(_uploaded, rows)
            if len(rows) < BATCH:
                return
            *_, last = rows
            start = last.key or b""
            if level is not None and start.count(b"\0") >= level:  # on with what follows this folder
                start = b"\0".join(start.split(b"\0")[:level]) + b"\1"

    def open(self, file: Uploaded) -> BinaryIO:
        opened = self._objects.open(file.name)
        if opened is None:
            raise StoreUnavailable(f"The bucket has lost {file.path[:200]!r}, its object {file.name}. Store it again.")
        return opened

    def sign(self, file: Uploaded) -> str | None:
        """Return a URL from which anybody can read a file for a while; None: the service's account cannot sign."""
        return self._objects.sign(file.name, _SIGNED_FOR)

    def remove(self, project_id: str, path: str, *, recursive: bool) -> bool:
        """Delete a file, or with `recursive` a folder; return whether there was one."""
        key = _key(path)
        beneath = and_(UploadedFile.key > key + b"\0", UploadedFile.key < key + b"\1")
        with self._database.write() as session:
            paths = _take_paths(session, and_(UploadedFile.project_id == project_id, UploadedFile.key == key))
            if recursive:
                paths += _take_paths(session, and_(UploadedFile.project_id == project_id, beneath))
            elif session.scalar(select(exists().where(UploadedFile.project_id == project_id, beneath))):
                raise SpecInvalid(
                    f"path: the folder {path[:200]!r} is not empty. Use recursive to delete it with its contents."
                )
        self._remove_now(project_id, paths)
        return bool(paths)

    def count(self, project_id: str | None = None) -> tuple[int, int]:
        """Return the number of files of one project or of all, and their bytes."""
        query = select(func.count(), func.sum(UploadedFile.size)).where(UploadedFile.key.is_not(None))
        if project_id is not None:
            query = query.where(UploadedFile.project_id == project_id)
        with self._database.read() as session:
            number, size = session.execute(query).one()
        return number, int(size or 0)

    def remove_unnamed(self) -> int:
        """Delete some of the objects that no file has any more, or whose upload broke off; return how many.

        Raises `StoreUnavailable`: the bucket or the database does not answer.
        """
        due = UploadedFile.key.is_(None), UploadedFile.remove_at <= now()
        query = select(UploadedFile.project_id, UploadedFile.id).where(*due).limit(BATCH)
        with self._database.read() as session:
            rows = session.execute(query).all()
        self._remove_objects([(project_id, file_id) for project_id, file_id in rows])
        return len(rows)

    def _remove_now(self, project_id: str, file_ids: Sequence[str]) -> None:
        try:
            self._remove_objects([(project_id, file_id) for file_id in file_ids[:BATCH]])
        except StoreUnavailable:
            logger.warning("uploads_not_removed", exc_info=True)

    def _remove_objects(self, files: Sequence[tuple[str, str]]) -> None:
        """Delete the objects of files that have no path, and then their rows; what fails here, `prune` tries again."""
        if files:
            self._objects.remove([f"{project_id}/{file_id}" for project_id, file_id in files])
            with self._database.write() as session:
                session.execute(delete(UploadedFile).where(UploadedFile.id.in_([file_id for _, file_id in files])))


def _key(path: str) -> bytes:
    return path.encode().replace(b"/", b"\0")


def _uploaded(row: UploadedFile) -> Uploaded:
    path = (row.key or b"").replace(b"\0", b"/").decode()
    return Uploaded(path, row.size, row.sha256, row.mtime_ms, f"{row.project_id}/{row.id}")


def _take_paths(session: Session, condition: ColumnElement[bool]) -> list[str]:
    """Take the paths of files away; return the files' ids."""
    taken = update(UploadedFile).where(condition).values(key=None, remove_at=now()).returning(UploadedFile.id)
    return list(session.scalars(taken))


def _check_path(session: Session, project_id: str, path: str) -> None:
    key = _key(path)
    if len(key) > _MAX_PATH_BYTES:
        raise SpecInvalid(f"path: it has more than {_MAX_PATH_BYTES:,} bytes. Choose a shorter one.", field="path")
    parts = key.split(b"\0")
    above = [b"\0".join(parts[:number]) for number in range(1, len(parts))]
    of_project = UploadedFile.project_id == project_id
    if session.scalar(
        select(exists().where(of_project, UploadedFile.key > key + b"\0", UploadedFile.key < key + b"\1"))
    ):
        raise SpecInvalid(f"path: {path[:200]!r} is a folder. Name a file in it.", field="path")
    if above and session.scalar(select(exists().where(of_project, UploadedFile.key.in_(above)))):
        raise SpecInvalid(
            f"path: a part of {path[:200]!r} is a file or a link, not a folder. Choose another path.", field="path"
        )
