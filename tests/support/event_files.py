"""Event files of TensorBoard, written without it."""

import struct
import time
from pathlib import Path

from google_crc32c import value as crc32c


def write_scalars(folder: Path, tag: str, values: list[float], *, first_step: int = 0) -> Path:
    """Append scalars, one for each step, to the event file of a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "events.out.tfevents.1700000000.test"
    with path.open("ab") as file:
        for step, value in enumerate(values, first_step):
            content = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", value)
            summary = b"\x0a" + bytes([len(content)]) + content
            at = struct.pack("<d", time.time())
            event = b"\x09" + at + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
            length = struct.pack("<Q", len(event))
            file.write(length + _checksum(length) + event + _checksum(event))
    return path


def _checksum(content: bytes) -> bytes:
    plain = crc32c(content)
    return struct.pack("<I", ((plain >> 15 | plain << 17) + 0xA282EAD8) & 0xFFFFFFFF)
