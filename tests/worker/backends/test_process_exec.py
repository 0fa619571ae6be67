"""A command in a job that is a process of this host."""

import resource
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from core.jobs.exec.channel import STDOUT
from worker.backends.process_exec import ProcessStream


@pytest.fixture
def _many_open_files():
    """More open files than select() takes, as in a worker with many jobs."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    with ExitStack() as opened:
        for _ in range(1024):
            opened.enter_context(Path("/dev/null").open("rb"))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_open_files")
def test_a_worker_with_many_open_files_passes_input_and_output_on():
    pipe = subprocess.PIPE
    child = subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
    assert child.stdout.fileno() > 1023
    stream = ProcessStream(child, child.pid, None)
    stream.write(b"said")
    stream.end_input()
    assert list(stream.outputs()) == [(STDOUT, b"said")]
    assert stream.exit_code() == 0
    child.stdout.close()
    child.stderr.close()
