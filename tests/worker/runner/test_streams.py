"""The streams of commands in jobs."""

import subprocess

import pytest

from core.jobs.exec.channel import STDOUT
from worker.runner.streams import ProcessStream


@pytest.mark.usefixtures("many_open_files")
def test_a_worker_with_many_open_files_passes_input_and_output_on():
    pipe = subprocess.PIPE
    child = subprocess.Popen(["cat"], stdin=pipe, stdout=pipe, stderr=pipe, bufsize=0, start_new_session=True)
    assert child.stdout.fileno() > 1023
    stream = ProcessStream(child, None, lambda _: None)
    stream.write(b"said")
    stream.end_input()
    assert list(stream.outputs()) == [(STDOUT, b"said")]
    assert stream.exit_code() == 0
    child.stdout.close()
    child.stderr.close()
