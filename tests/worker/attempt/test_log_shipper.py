import os

import pytest

from core.storage.joblogs.store import JobLogs
from core.storage.joblogs.writer import LogWriter
from worker.attempt.outputs import log_shipper
from worker.attempt.outputs.log_shipper import LogShipper, SourceFile

TAIL = 1000


class Shipped:
    """A job's output file, and its log."""

    def __init__(self, folder, max_bytes):
        self.path = folder / "log"
        self.logs = JobLogs(folder / "logs", max_bytes=max_bytes)

    def ship(self, *, finish):
        """Ship as a restarted worker does."""
        source = SourceFile(self.path)
        with self.logs.open_writer("j1", 1) as writer:
            shipper = LogShipper(source, writer, TAIL)
            shipper.ship()
            if finish:
                shipper.finish()
        source.close()

    def stored(self):
        reader = self.logs.reader("j1")
        return b"".join(reader.raw_blocks(0, reader.size))


@pytest.fixture
def shipped(tmp_path):
    return Shipped(tmp_path, max_bytes=100_000)


def test_every_byte_is_shipped_once_over_any_number_of_workers(shipped):
    written = b""
    for number in range(50):
        piece = bytes([number]) * (number * 7)
        with shipped.path.open("ab") as file:
            file.write(piece)
        written += piece
        shipped.ship(finish=False)
    shipped.ship(finish=True)
    assert shipped.stored() == written


def test_output_past_the_limit_loses_its_middle_and_says_so(shipped):
    output = b"".join(b"line %06d\n" % number for number in range(100_000))
    shipped.path.write_bytes(output)
    shipped.ship(finish=False)
    assert shipped.stored() == output[: 100_000 - TAIL]
    shipped.ship(finish=True)
    stored = shipped.stored()
    assert stored.startswith(output[: 100_000 - TAIL])
    assert stored.endswith(output[-TAIL:])
    (gap,) = [line for line in stored.splitlines() if b"[gradient]" in line]
    assert f"{len(output) - 100_000:,} bytes".encode() in gap
    shipped.ship(finish=True)
    assert shipped.stored() == stored, "finishing again changes nothing"


def test_disk_space_of_shipped_output_is_given_back(tmp_path, monkeypatch):
    monkeypatch.setattr(log_shipper, "RELEASE_BYTES", 1024**2)
    shipped = Shipped(tmp_path, max_bytes=1024**3)
    shipped.path.write_bytes(os.urandom(8 * 1024**2).replace(b"\x1b", b"."))
    before = shipped.path.read_bytes()
    shipped.ship(finish=True)
    assert shipped.stored() == before
    assert shipped.path.stat().st_size == len(before)
    assert shipped.path.stat().st_blocks * 512 <= 2 * 1024**2


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("/etc/passwd")])
def test_what_is_no_plain_file_is_not_read(tmp_path, make):
    make(tmp_path / "log")
    source = SourceFile(tmp_path / "log")
    assert source.read(0, 100) == b""
    assert source.size == 0
    source.close()


def test_output_is_safe_on_disk_before_its_source_is_given_back(shipped, monkeypatch):
    done = []
    monkeypatch.setattr(log_shipper, "RELEASE_BYTES", 1000)
    monkeypatch.setattr(log_shipper, "_punch_hole", lambda *_: done.append("freed") or True)
    monkeypatch.setattr(LogWriter, "sync", lambda _: done.append("synced"))
    shipped.path.write_bytes(b"x" * 5000)
    shipped.ship(finish=False)
    assert done[:2] == ["synced", "freed"]
