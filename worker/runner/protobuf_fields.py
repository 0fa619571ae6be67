from __future__ import annotations

from collections.abc import Iterator

_VARINT, _BYTES = 0, 2
_SIZES = {1: 8, 5: 4}
"""Bytes of a number of fixed width, by its wire type."""
_MAX_VARINT_BITS = 64


def read_fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Return the fields of a message of Protocol Buffers: the number of each, and an integer or its bytes."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in _SIZES:
            size = _SIZES[kind]
        else:
            raise ValueError(f"wire type {kind} is not known")
        if at + size > len(data):
            raise ValueError("the message was cut off")
        yield tag >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, and where the next one begins."""
    value = shift = 0
    while True:
        if at >= len(data):
            raise ValueError("the message was cut off")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if shift > _MAX_VARINT_BITS + 6:
            raise ValueError("the number is too long")
        if byte < 0x80:  # noqa: PLR2004 - the highest bit says that more follow
            return value, at
