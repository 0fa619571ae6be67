"""Scalars of the event files that TensorBoard's writers leave in a job's folders, as metrics.

A file is a row of records (TFRecord): length, checksum of the length, an event of Protocol Buffers, its checksum.
"""

import json
import math
import os
import posixpath
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from core.jobs.tracking.metrics import EVENT_FILES_STREAM, StoredSummary
from core.storage.artifacts.paths import to_public_path
from core.storage.artifacts.scan import SkipList, scan
from core.system.filesystem import write_atomically
from core.system.trees import open_file_beneath, opened_folder
from worker.attempt.outputs.log_shipper import BATCH_VALUES, MetricsReader, parse_time, storable_name
from worker.attempt.outputs.workspace_files import IGNORED_FOLDERS
from worker.attempt.scratch import Scratch
from worker.backends.tpu.vm.agent.protobuf_fields import read_fields

_MAX_FILES = 200
_MAX_SEARCHED = 20_000
_MAX_EVENT_BYTES = 1 << 20
_BATCH_SECONDS = 0.5
_FRAME = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_NUMBERS = {4: "<f", 8: "<d"}
_FLOAT_TYPES = {1: 4, 2: 8}
"""Bytes of a number, by the type of its tensor: float and double."""

# Numbers of the fields of Event, Summary, Summary.Value and TensorProto
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE = 1
_TAG, _SIMPLE_VALUE, _TENSOR = 1, 2, 8
_TYPE, _SHAPE, _CONTENTS = 1, 2, {4, 5, 6}


class EventFiles:
    """Finds the event files that a job writes to its workspace and artifacts, and reads them as they grow.

    Files that were there before the job are not its own. Of two folders the second gets its name before its metrics'.
    """

    def __init__(self, scratch: Scratch, reader: MetricsReader, stored: StoredSummary) -> None:
        self._scratch = scratch
        self._reader = reader
        self._offsets = {place - EVENT_FILES_STREAM: offset for place, offset in stored.offsets.items()}
        self._paths: list[str] = []
        with suppress(OSError, ValueError):
            self._paths = json.loads(scratch.event_files.read_text())
        self.more = False
        """True if the last batch was full."""

    def find(self) -> None:
        paths = list(self._paths)
        for tree in (self._scratch.workspace, self._scratch.artifacts):
            with suppress(OSError):
                started = (self._scratch.control / "command").lstat().st_mtime_ns  # written at its launch
                with opened_folder(self._scratch.root / tree.name) as folder:
                    found = scan(folder, SkipList(), max_files=_MAX_SEARCHED, ignored=IGNORED_FOLDERS).files
                # The job may copy its files from one tree to the other; their names are unique.
                copied = {posixpath.basename(path) for path in paths if not path.startswith(f"{tree.name}/")}
                paths += [
                    f"{tree.name}/{path}"
                    for path in sorted(found, key=lambda path: (path.count("/"), path))
                    if ".tfevents." in (name := posixpath.basename(path)) and name not in copied
                    if found[path].mtime_ns >= started and f"{tree.name}/{path}" not in paths
                ]
        if len(paths) > _MAX_FILES:
            text = f"Of its event files {_MAX_FILES} are read: further ones are left out."
            self._reader.left_out.setdefault("event_files_limit", text)
        if (kept := paths[:_MAX_FILES]) != self._paths:
            with suppress(OSError):  # on a full disk, later
                write_atomically(self._scratch.event_files, json.dumps(kept).encode(), durable=False)
                self._paths = kept

    def read(self) -> list[dict[str, Any]]:
        """Return rows for what is new in the files, at most one batch."""
        rows: list[dict[str, Any]] = []
        until = time.monotonic() + _BATCH_SECONDS
        self.more = False
        with suppress(OSError), opened_folder(self._scratch.root) as folder:
            for number, path in enumerate(self._paths):
                with suppress(OSError):
                    descriptor = open_file_beneath(folder, path.split("/"))
                    try:
                        for row in self._read_file(descriptor, number):
                            rows += [row] if row is not None else []
                            self.more = len(rows) >= BATCH_VALUES or time.monotonic() > until
                            if self.more:
                                return rows
                    finally:
                        os.close(descriptor)
        return rows

    def _read_file(self, descriptor: int, number: int) -> Iterator[dict[str, Any] | None]:
        """Yield the row of each new event; None for one without a scalar."""
        size, path = os.fstat(descriptor).st_size, self._paths[number]
        prefix = self._prefix(path)
        while len(head := os.pread(descriptor, _FRAME.size, offset := self._offsets.get(number, 0))) == _FRAME.size:
            length, checksum = _FRAME.unpack(head)
            if checksum != _masked_crc32c(head[:8]):  # where the next one begins is unknown
                self._report_damaged(path, offset)
                return
            end = offset + _FRAME.size + length + _CHECKSUM.size
            if end > size:
                return
            row = None
            if length <= _MAX_EVENT_BYTES:  # else a picture, or a graph
                record = os.pread(descriptor, length + _CHECKSUM.size, offset + _FRAME.size)
                try:
                    at, step, scalars = _parse_event(record[:length], record[length:])
                except (ValueError, struct.error):
                    self._report_damaged(path, offset)
                else:
                    values = {storable_name(prefix + tag): value for tag, value in scalars.items()}
                    row = self._reader.make_row(EVENT_FILES_STREAM + number, offset, step, at, values)
            self._offsets[number] = end
            yield row

    def _report_damaged(self, path: str, offset: int) -> None:
        self._reader.left_out.setdefault(
            "event_file_damaged",
            f"The event file {to_public_path(path.partition('/')[2])} is damaged at byte {offset:,}: what cannot be "
            "read in it is left out.",
        )

    def _prefix(self, path: str) -> str:
        first, own = (posixpath.dirname(one.partition("/")[2]) for one in (self._paths[0], path))
        parts = [part for part in posixpath.relpath(own or ".", first or ".").split("/") if part not in {".", ".."}]
        return "".join(f"{part}/" for part in parts)


def _parse_event(content: bytes, checksum: bytes) -> tuple[datetime, float, dict[str, float | None]]:
    """Return the time, the step and the scalars of an event. Raises `ValueError`, `struct.error`: it is damaged."""
    at, step = datetime.now(UTC), 0
    scalars: dict[str, float | None] = {}
    for number, value in read_fields(content):
        if number == _WALL_TIME and isinstance(value, bytes):
            at = parse_time(struct.unpack("<d", value)[0], at)
        elif number == _STEP and isinstance(value, int):
            step = value
        elif number == _SUMMARY and isinstance(value, bytes):
            for kind, entry in read_fields(value):
                if kind == _VALUE and isinstance(entry, bytes):
                    scalars |= _parse_scalar(entry)
    if scalars and checksum != _CHECKSUM.pack(_masked_crc32c(content)):
        raise ValueError(checksum)
    return at, float(step if step < 1 << 63 else step - (1 << 64)), scalars


def _parse_scalar(entry: bytes) -> dict[str, float | None]:
    """Return the value of an entry by its tag; nothing if it is no scalar."""
    fields = {number: value for number, value in read_fields(entry) if isinstance(value, bytes)}
    number = _number_of_tensor(fields[_TENSOR]) if _TENSOR in fields else fields.get(_SIMPLE_VALUE)
    if number is None or _TAG not in fields:
        return {}
    value = struct.unpack(_NUMBERS.get(len(number), "<f"), number)[0]
    return {fields[_TAG].decode(): value if math.isfinite(value) else None}


def _number_of_tensor(tensor: bytes) -> bytes | None:
    """Return the bytes of its only number; None if it has several, or no number."""
    fields = dict(read_fields(tensor))
    found = [value for number, value in fields.items() if number in _CONTENTS and isinstance(value, bytes)]
    width = _FLOAT_TYPES.get(int(fields[_TYPE])) if isinstance(fields.get(_TYPE), int) else None
    return found[0] if not fields.get(_SHAPE) and width and [len(one) for one in found] == [width] else None


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
