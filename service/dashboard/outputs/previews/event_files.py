"""Scalars of TensorBoard's event files: TFRecord frames with messages of a few fields."""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from core.jobs.metrics import Series

_FRAME = struct.Struct("<QI")
_MAX_EVENT = 1024**2
_MAX_BYTES = 64 * 1024**2
_MAX_POINTS = 200_000
_MAX_SERIES = 200
_MAX_FIELDS = 1_000_000
"""Most fields and records that are read: a point of TensorFlow 2 has a dozen."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FLOAT, _DOUBLE = 1, 2
_CHECKSUM = 4
_SHAPE = 2

Field = tuple[int, int, int | bytes]


@dataclass(frozen=True, slots=True)
class Scalars:
    """The scalars of a file: of its beginning, if they are not `complete`."""

    series: list[Series]
    complete: bool


def read_scalars(file: BinaryIO) -> Scalars:
    """Read the scalars of a file until a limit is reached; a damaged end is left out."""
    series: dict[str, Series] = {}
    try:
        complete = _read_series(file, _FieldBudget(), series)
    except _TooManyFields:
        complete = False
    return Scalars(list(series.values()), complete)


class _TooManyFields(Exception):
    """The limit of fields is reached."""


class _FieldBudget:
    """The number of fields that may still be read: a megabyte can have half a million."""

    def __init__(self) -> None:
        self._left = _MAX_FIELDS

    def spend(self) -> None:
        """Count one.

        Raises:
            _TooManyFields: It is one too many.
        """
        self._left -= 1
        if self._left < 0:
            raise _TooManyFields


def _read_series(file: BinaryIO, budget: _FieldBudget, series: dict[str, Series]) -> bool:
    """Add the scalars of a file to the series; return whether they are all."""
    points, complete = 0, True
    for event in _records(file):
        budget.spend()
        try:
            at, step, values = _event(event, budget)
        except (ValueError, struct.error, IndexError):
            continue
        for tag, value in values:
            if tag not in series and len(series) >= _MAX_SERIES:
                complete = False
                continue
            series.setdefault(tag, Series(tag, "job")).points.append((float(step), at, value))
            points += 1
        if points >= _MAX_POINTS:
            return False
    return complete and file.tell() < _MAX_BYTES


def _records(file: BinaryIO) -> Iterator[bytes]:
    read = 0
    while len(head := file.read(_FRAME.size)) == _FRAME.size and read < _MAX_BYTES:
        length, _ = _FRAME.unpack(head)
        read += length + _FRAME.size + _CHECKSUM
        if length > _MAX_EVENT:  # a picture or a graph
            if read > _MAX_BYTES:
                return
            file.seek(length + _CHECKSUM, 1)
            continue
        record = file.read(length)
        if len(record) < length or len(file.read(_CHECKSUM)) < _CHECKSUM:
            return
        yield record


def _event(record: bytes, budget: _FieldBudget) -> tuple[float, int, list[tuple[str, float]]]:
    at, step, values = 0.0, 0, []
    for number, wire, value in _fields(record, budget):
        if (number, wire) == (1, _FIXED64) and isinstance(value, bytes):
            at = struct.unpack("<d", value)[0]
        elif (number, wire) == (2, _VARINT) and isinstance(value, int):
            step = value
        elif (number, wire) == (5, _BYTES) and isinstance(value, bytes):
            entries = [(kind, each) for one, kind, each in _fields(value, budget) if one == 1]
            values += [scalar for kind, each in entries for scalar in _scalar(kind, each, budget)]
    if not 0 <= at < 4_102_444_800:  # noqa: PLR2004 - the year 2100
        raise ValueError(at)
    return at, step, values


def _scalar(wire: int, message: int | bytes, budget: _FieldBudget) -> Iterator[tuple[str, float]]:
    """Yield the tag and the value of one entry of a summary, if it is a scalar."""
    if wire != _BYTES or not isinstance(message, bytes):
        return
    tag, value = "", None
    for number, kind, content in _fields(message, budget):
        if isinstance(content, int):
            continue
        if (number, kind) == (1, _BYTES):
            tag = content.decode("utf-8", "replace")[:300]
        elif (number, kind) == (2, _FIXED32):
            value = struct.unpack("<f", content)[0]
        elif (number, kind) == (8, _BYTES):
            value = _tensor(content, budget)
    if tag and value is not None:
        yield tag, value


def _tensor(message: bytes, budget: _FieldBudget) -> float | None:
    """Return the number of a scalar tensor; None for others."""
    kind, content = 0, b""
    for number, _, value in _fields(message, budget):
        if number == 1 and isinstance(value, int):
            kind = value
        elif number == _SHAPE and value:  # it has dimensions
            return None
        elif number in {4, 5, 6} and isinstance(value, bytes):
            content = value
    known = {(_FLOAT, 4): "<f", (_DOUBLE, 8): "<d"}.get((kind, len(content)))
    return struct.unpack(known, content)[0] if known else None


def _fields(message: bytes, budget: _FieldBudget) -> Iterator[Field]:
    """Yield the number, wire type and value of each field of a message."""
    at = 0
    while at < len(message):
        budget.spend()
        key, at = _varint(message, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            whole, at = _varint(message, at)
            yield number, wire, whole
            continue
        if wire == _BYTES:
            length, at = _varint(message, at)
        elif wire in {_FIXED64, _FIXED32}:
            length = 8 if wire == _FIXED64 else 4
        else:
            raise ValueError(wire)
        if at + length > len(message):
            raise ValueError(length)
        yield number, wire, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:  # noqa: PLR2004 - the last byte has no high bit
            return value, at
    raise ValueError(value)
