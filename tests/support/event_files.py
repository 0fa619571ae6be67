"""Event files of TensorBoard, written without it."""

import struct
import time
from pathlib import Path

from google_crc32c import value as crc32c


def write_scalars(
    folder: Path, tag: str, values: list[float], *, first_step: int = 0, writer: str = "test", purges: bool = False
) -> Path:
    """Append scalars, one for each step, to the event file of a writer in a folder.

    `purges`: say before them that they take the place of what is there from their first step on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"events.out.tfevents.1700000000.{writer}"
    with path.open("ab") as file:
        if purges:
            file.write(_record(first_step, b"\x3a\x02\x08\x01"))
        for step, value in enumerate(values, first_step):
            content = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
            summary = b"\x0a" + bytes([len(content)]) + content
            file.write(_record(step, b"\x2a" + bytes([len(summary)]) + summary))
    return path


def _record(step: int, content: bytes) -> bytes:
    event = b"\x09" + struct.pack("<d", time.time()) + b"\x10" + bytes([step]) + content
    length = struct.pack("<Q", len(event))
    return length + _checksum(length) + event + _checksum(event)


def _checksum(content: bytes) -> bytes:
    plain = crc32c(content)
    return struct.pack("<I", ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF)
