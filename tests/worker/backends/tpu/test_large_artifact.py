"""An artifact whose upload takes far longer than the silence after which a TPU VM is given up."""

import logging
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from google_crc32c import Checksum
from support.deployment import wait_until
from support.faults.fault_report import FULL_RUN

from gradient_server.simulator.gcs.server import StorageHandler

GIB, MIB = 1024**3, 1024**2
SIZE, SILENCE, SECONDS = (40 * GIB, 20.0, 60.0) if FULL_RUN else (64 * MIB, 4.0, 9.0)
"""Of the artifact, in bytes; of the silence; and of the upload, at least."""
LOG_LAG = 10.0
"""Seconds by which the output may be late meanwhile, on a busy machine."""
RUNNER_BYTES = 200 * MIB

# A sparse file with something in it at three places. The job goes on printing until it is stopped.
COMMAND = """
trap 'echo over; exit 0' TERM
truncate -s $SIZE big
for at in 0 $((SIZE / 2)) $((SIZE - 5)); do
  printf 'mark!' | dd of=big bs=1 seek=$at conv=notrunc 2>/dev/null
done
mv big "$GRADIENT_ARTIFACTS_DIR"
echo up
while :; do date +%s.%N; sleep 0.2; done
"""

logger = logging.getLogger(__name__)

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600 if FULL_RUN else 120)]


def peak_memory(place):
    """Return the most memory that a program of a VM has had, in bytes."""
    peak = 0
    for process in psutil.process_iter(["name"]):
        try:
            if process.environ().get("GRADIENT_VM_PLACE") == str(place) and "python" in process.name():
                status = Path(f"/proc/{process.pid}/status").read_text()
                peak = max(peak, int(status.partition("VmHWM:")[2].split()[0]) * 1024)
        except (psutil.Error, OSError):
            continue
    return peak


def checksum(path):
    made = Checksum()
    with path.open("rb") as file:
        while block := file.read(16 * MIB):
            made.update(block)
    return made.digest()


@pytest.fixture
def upload(monkeypatch):
    """The upload of the artifact, of `SECONDS` at least: it is counted and summed, and not kept."""
    found = SimpleNamespace(size=0, checksum=Checksum(), times=0, took=0.0)
    read_body = StorageHandler.read_body

    def read(handler, **options):
        if handler.command != "POST" or "%2Fmodel%2Fbig" not in handler.path:
            return read_body(handler, **options)
        began, found.size, found.checksum = time.monotonic(), 0, Checksum()
        while found.size < SIZE and (block := handler.rfile.read(min(MIB, SIZE - found.size))):
            found.size += len(block)
            found.checksum.update(block)
            time.sleep(max(0.0, began + SECONDS * found.size / SIZE - time.monotonic()))
        found.took = time.monotonic() - began
        found.times += found.size == SIZE
        return b""  # the object is there, and empty

    monkeypatch.setattr(StorageHandler, "read_body", read)
    return found


def test_a_large_artifact_is_no_silence(make_google_harness, google, upload):
    place = make_google_harness(
        "TPU v5e", placement="vm", vm_poll_seconds=0.2, probe_seconds=60.0, vm_silent_seconds=SILENCE
    )
    spec = place.spec(COMMAND, env={"SIZE": str(SIZE)}, stop_grace=30)
    handle = place.launch(spec)
    wait_until(lambda: place.backend.ended(handle) or upload.size, "the upload to begin", 60)
    disk = google.vms.disk(google.node().name)
    latest = 0.0
    while not upload.times:
        assert place.backend.ended(handle) is None, "the job was given up"
        lines = place.output(spec).decode().splitlines()
        latest = max(latest, time.time() - float(lines[-1])) if len(lines) > 1 else latest
        time.sleep(0.2)
    memory = peak_memory(disk)
    figures = SIZE, upload.took, latest, memory / MIB
    logger.info("%s bytes in %.0f s; output at most %.1f s late; runner %.0f MiB", *figures)
    assert upload.took > 2 * SILENCE
    assert (upload.size, upload.times) == (SIZE, 1)
    assert upload.checksum.digest() == checksum(disk / "artifacts" / "big")
    assert latest < LOG_LAG
    assert 0 < memory < RUNNER_BYTES
    place.backend.signal(handle, grace=True)
    exit_ = place.wait(handle)
    assert (exit_.code, exit_.reason) == (0, None)
    assert upload.times == 1, "it was sent again"
