"""Scalars of the event files that TensorBoard's writers leave in a job's folders, as metrics.

A file is a row of records (TFRecord): length, checksum of the length, an event of Protocol Buffers, its checksum.
"""

import json
import os
import posixpath
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from core.jobs.tracking.metrics import EVENT_FILES_STREAM, MAX_EVENT_FILES, StoredSummary
from core.storage.artifacts.paths import to_public_path
from core.storage.artifacts.scan import SkipList, scan
from core.system.filesystem import write_atomically
from core.system.untrusted_folders import open_file_beneath, opened_folder
from worker.attempt.outputs.metric_lines import parse_time
from worker.attempt.outputs.metric_rows import MetricRows
from worker.attempt.outputs.metrics_reader import BATCH_VALUES
from worker.attempt.scratch import Scratch
from worker.runner.protobuf_fields import read_fields
from worker.runner.workspace_files import IGNORED_FOLDERS

_MAX_SEARCHED = 20_000
_MAX_EVENT_BYTES = 1 << 20
_BATCH_SECONDS = 0.5
_HEAD_BYTES = 24
_FRAME = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_NUMBERS = {4: "<f", 8: "<d"}
_FLOAT_TYPES = {1: 4, 2: 8}
"""Bytes of a number, by the type of its tensor: float and double."""

# Numbers of the fields of Event, SessionLog, Summary, Summary.Value and TensorProto
_WALL_TIME, _STEP, _SUMMARY, _SESSION_LOG = 1, 2, 5, 7
_STATUS, _START = 1, 1
_VALUE = 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_TYPE, _SHAPE, _CONTENTS = 1, 2, {4, 5, 6}


@dataclass
class _EventFile:
    path: str  # where it is now, from the job's scratch folder
    name: str  # where it was found, which its metrics are named by
    inode: int
    head: str  # its first bytes, among them the time at which it was begun
    end_step: float | None = None  # values from this step on were taken back


class EventFiles:
    """Finds the event files that a job writes to its workspace and artifacts, and reads them as they grow.

    Files that were there before the job are not its own. Of two folders the second gets its name before its metrics'. A
    file that is moved, or fetched again from a bucket, stays the same.
    """

    def __init__(self, scratch: Scratch, rows: MetricRows, stored: StoredSummary) -> None:
        self._scratch = scratch
        self._rows = rows
        self._offsets = {position - EVENT_FILES_STREAM: offset for position, offset in stored.offsets.items()}
        self.files: list[_EventFile] = []
        with suppress(OSError, ValueError, TypeError):
            self.files = [_EventFile(**file) for file in json.loads(scratch.event_files.read_text())]
        self.more = False
        """True if the last batch was full."""

    def find(self) -> None:
        before = [replace(file) for file in self.files]
        for tree in (self._scratch.workspace, self._scratch.artifacts):
            with suppress(OSError):
                started = (self._scratch.control / "command").lstat().st_mtime_ns  # written at its launch
                with opened_folder(self._scratch.root / tree.name) as folder:
                    files = scan(folder, SkipList(), max_files=_MAX_SEARCHED, ignored=IGNORED_FOLDERS).files
                    for path in sorted(files, key=lambda path: (path.count("/"), path)):
                        if ".tfevents." in posixpath.basename(path) and files[path].mtime_ns >= started:
                            self._take(folder, tree.name, path, files[path].inode)
        if self.files != before:
            self._save()

    def _take(self, folder: int, tree: str, path: str, inode: int) -> None:
        """Remember a file unless it is known; one that was moved is."""
        whole = f"{tree}/{path}"
        with suppress(OSError), _opened(open_file_beneath(folder, path.split("/"))) as descriptor:
            head = _head(descriptor)
            known_file = next((file for file in self.files if self._is_same(file, whole, inode, head)), None)
            # The job may copy its files from one tree to the other; their names are unique.
            name = posixpath.basename(path)
            copied = (
                posixpath.basename(file.path) == name for file in self.files if not file.path.startswith(f"{tree}/")
            )
            if known_file is not None:
                known_file.path, known_file.inode = whole, inode
            elif len(self.files) >= MAX_EVENT_FILES:
                text = f"Only {MAX_EVENT_FILES} event files are read; the others are left out."
                self._rows.left_out.setdefault("event_files_limit", text)
            elif head and not any(copied):
                self.files.append(_EventFile(whole, whole, inode, head))

    def _is_same(self, file: _EventFile, path: str, inode: int, head: str) -> bool:
        in_place = file.inode == inode or file.path == path
        return file.head == head and (in_place or not os.path.lexists(self._scratch.root / file.path))

    def _save(self) -> None:
        with suppress(OSError):  # on a full disk, later
            content = json.dumps([asdict(file) for file in self.files]).encode()
            write_atomically(self._scratch.event_files, content, durable=False)

    def read(self) -> list[dict[str, Any]]:
        """Return rows for what is new in the files, at most one batch."""
        rows: list[dict[str, Any]] = []
        until = time.monotonic() + _BATCH_SECONDS
        self.more = False
        with suppress(OSError), opened_folder(self._scratch.root) as folder:
            for number, file in enumerate(self.files):
                with suppress(OSError), _opened(open_file_beneath(folder, file.path.split("/"))) as opened:
                    if _head(opened) != file.head:  # another file has taken its place
                        continue
                    for file_rows in self._read_file(opened, number):
                        rows += file_rows
                        self.more = len(rows) >= BATCH_VALUES or time.monotonic() > until
                        if self.more:
                            return rows
        return rows

    def _read_file(self, descriptor: int, number: int) -> Iterator[list[dict[str, Any]]]:
        """Yield the rows of each new event."""
        size, file = os.fstat(descriptor).st_size, self.files[number]
        prefix = self._prefix(file.name)
        while len(head := os.pread(descriptor, _FRAME.size, offset := self._offsets.get(number, 0))) == _FRAME.size:
            length, checksum = _FRAME.unpack(head)
            if checksum != _masked_crc32c(head[:8]):  # where the next one begins is unknown
                self._report_damaged(file.path, offset)
                return
            end = offset + _FRAME.size + length + _CHECKSUM.size
            if end > size:
                return
            rows = []
            if length <= _MAX_EVENT_BYTES:  # else a picture, or a graph
                record = os.pread(descriptor, length + _CHECKSUM.size, offset + _FRAME.size)
                try:
                    event = _parse_event(record[:length], record[length:])
                except (ValueError, struct.error):
                    self._report_damaged(file.path, offset)
                else:
                    if event.restarts:
                        rows += self._take_back(number, event.step)
                    if event.scalars and (file.end_step is None or event.step < file.end_step):
                        values = {prefix + tag: value for tag, value in event.scalars.items()}
                        rows += self._rows.add(EVENT_FILES_STREAM + number, offset, event.step, event.at, values)
            self._offsets[number] = end
            yield rows

    def _take_back(self, number: int, step: float) -> list[dict[str, Any]]:
        """Remove what files of the same folder have from a step on, as TensorBoard does: the program begins there."""
        folder = posixpath.dirname(self.files[number].name)
        same = [at for at, file in enumerate(self.files[: number + 1]) if posixpath.dirname(file.name) == folder]
        for at in same[:-1]:
            earlier = self.files[at]
            earlier.end_step = step if earlier.end_step is None else min(step, earlier.end_step)
        self._save()
        return self._rows.remove([EVENT_FILES_STREAM + at for at in same], step)

    def _report_damaged(self, path: str, offset: int) -> None:
        self._rows.left_out.setdefault(
            "event_file_damaged",
            f"The event file {to_public_path(path.partition('/')[2])} is damaged at byte {offset:,}: unreadable "
            "parts are left out.",
        )

    def _prefix(self, path: str) -> str:
        first, parent = (posixpath.dirname(file_path.partition("/")[2]) for file_path in (self.files[0].name, path))
        parts = [part for part in posixpath.relpath(parent or ".", first or ".").split("/") if part not in {".", ".."}]
        return "".join(f"{part}/" for part in parts)


@contextmanager
def _opened(descriptor: int) -> Iterator[int]:
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _head(descriptor: int) -> str:
    head = os.pread(descriptor, _HEAD_BYTES, 0)
    return head.hex() if len(head) == _HEAD_BYTES else ""


class _Event(NamedTuple):
    at: datetime
    step: float
    scalars: dict[str, float]  # by their tags
    restarts: bool  # whether values of this step and later ones, written before it, are void


def _parse_event(content: bytes, checksum: bytes) -> _Event:
    """Parse an event. Raises `ValueError`, `struct.error`: it is damaged."""
    at, step, restarts = datetime.now(UTC), 0, False
    scalars: dict[str, float] = {}
    for number, value in read_fields(content):
        if number == _WALL_TIME and isinstance(value, bytes):
            at = parse_time(struct.unpack("<d", value)[0], at)
        elif number == _STEP and isinstance(value, int):
            step = value
        elif number == _SUMMARY and isinstance(value, bytes):
            for kind, entry in read_fields(value):
                if kind == _VALUE and isinstance(entry, bytes):
                    scalars |= _parse_scalar(entry)
        elif number == _SESSION_LOG and isinstance(value, bytes):
            restarts = (_STATUS, _START) in read_fields(value)
    if (scalars or restarts) and checksum != _CHECKSUM.pack(_masked_crc32c(content)):
        raise ValueError(checksum)
    return _Event(at, float(step if step < 1 << 63 else step - (1 << 64)), scalars, restarts)


def _parse_scalar(entry: bytes) -> dict[str, float]:
    """Return the value of an entry by its tag; nothing if it is no scalar."""
    fields = {number: value for number, value in read_fields(entry) if isinstance(value, bytes)}
    number = _number_of_tensor(fields[_TENSOR]) if _TENSOR in fields else fields.get(_SIMPLE_VALUE)
    if number is None or _TAG not in fields:
        return {}
    return {fields[_TAG].decode(): struct.unpack(_NUMBERS.get(len(number), "<f"), number)[0]}


def _number_of_tensor(tensor: bytes) -> bytes | None:
    """Return the bytes of its only number; None if it has several, or no number."""
    fields = dict(read_fields(tensor))
    contents = [value for number, value in fields.items() if number in _CONTENTS and isinstance(value, bytes)]
    width = _FLOAT_TYPES.get(int(fields[_TYPE])) if isinstance(fields.get(_TYPE), int) else None
    return (
        contents[0] if not fields.get(_SHAPE) and width and [len(content) for content in contents] == [width] else None
    )


def _crc32c_entry(byte: int) -> int:
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    return byte


_CRC32C = [_crc32c_entry(byte) for byte in range(256)]


def _masked_crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _CRC32C[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
