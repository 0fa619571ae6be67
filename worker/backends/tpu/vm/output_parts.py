"""The output of a job on its VM, brought here in parts."""

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING

from worker.backends.tpu.vm.agent import PART_BYTES

if TYPE_CHECKING:
    from worker.backends.tpu.storage import Mailbox

_PART_NAME = re.compile(r"[0-9]{20}")


def append_parts(
    mailbox: "Mailbox", file: Path, name: str, reported: dict[str, object], aligned: set[str], until: float
) -> bool:
    """Append the new part of a file that the job writes on its VM; return False if there was no time for all of it.

    Args:
        reported: The VM's report, with the bytes that it has sent, if it says so.
        aligned: Names of files here that end where a part ends: the last worker may have died in the middle of one.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        if reported.get(name) == size:
            return True
        start = size if name in aligned else max(0, size - PART_BYTES)
        for part, length in mailbox.sizes(name, f"{start:020d}"):
            if part > f"{size:020d}":
                break  # a part that begins later, or something else among the parts, of which there may be many
            if time.monotonic() >= until:
                return False
            begins = int(part) if _PART_NAME.fullmatch(part) else -1  # the job controls its VM, and can write there too
            if not 0 <= begins <= size < begins + min(length, PART_BYTES):
                continue
            content = mailbox.get(f"{name}/{part}", PART_BYTES)
            # A write may have been cut short by a full disk or a crash: only what is missing is added.
            rest = memoryview(content or b"")[max(0, size - begins) :]
            aligned.discard(name)
            while rest:
                written = os.write(descriptor, rest)
                rest, size = rest[written:], size + written
        aligned.add(name)
    finally:
        os.close(descriptor)
    return True
