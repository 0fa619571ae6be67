"""Writers of one log: of two, also of one that was frozen, only the last one writes."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

from core.errors import LeaseLost, StoreUnavailable
from core.storage.joblogs import writer as joblog_writer
from core.storage.joblogs.store import JobLogs

JOB = "jabc123"
SOURCE = b"one\ntwo\nlast"


def test_only_the_writer_that_was_opened_last_can_write(tmp_path):
    """A frozen worker wakes up after another one took its job over, and finds its source's beginning freed."""
    logs = JobLogs(tmp_path)
    source = b"".join(b"line %05d\n" % number for number in range(3000))
    with logs.open_writer("j1", 1) as stale:
        stale.append(source[:1100], 0)
        with logs.open_writer("j1", 1) as writer:
            while writer.position < len(source):
                if writer.position == 22_000:
                    with pytest.raises(LeaseLost):
                        stale.append(bytes(20_000), 99_999)
                writer.append(source[writer.position : writer.position + 550], writer.position * 10)
    reader = logs.reader("j1")
    assert reader.raw(0, len(source) + 1) == source
    assert [line.message for line in reader.lines(0, 5000, final=True)] == source.decode().splitlines()


@pytest.mark.faults
def test_a_process_frozen_while_it_opens_a_log_removes_nothing_when_it_wakes(tmp_path, monkeypatch):
    logs = JobLogs(tmp_path)
    program = textwrap.dedent("""
        import os, pathlib, signal, sys
        from core.errors import LeaseLost
        from core.storage.joblogs import writer
        from core.storage.joblogs.store import JobLogs

        def freeze_and_truncate(descriptor, size, truncate=os.ftruncate):
            signal.raise_signal(signal.SIGSTOP)
            truncate(descriptor, size)

        writer.os.ftruncate = freeze_and_truncate
        opened = JobLogs(pathlib.Path(sys.argv[1])).open_writer(sys.argv[2], 1)
        print("open", flush=True)
        sys.stdin.read(1)
        try:
            opened.append(b"late", 0)
        except LeaseLost:
            print("refused")
    """)
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path, JOB], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            for _ in ("index", "raw"):
                os.waitid(os.P_PID, child.pid, os.WSTOPPED)
                with monkeypatch.context() as patch:
                    patch.setattr(joblog_writer, "LOCK_SECONDS", 0.0)
                    with pytest.raises(StoreUnavailable, match="in the middle of a write"):
                        logs.open_writer(JOB, 1)
                child.send_signal(signal.SIGCONT)
            assert child.stdout.readline() == "open\n"
            with logs.open_writer(JOB, 1) as writer:
                writer.append(SOURCE, 0)
            assert child.communicate("x")[0] == "refused\n"
        finally:
            child.kill()
    assert logs.reader(JOB).raw(0, 1000) == SOURCE
