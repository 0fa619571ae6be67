"""Commands in jobs: their start, and their signals."""

import os
import subprocess

import pytest

from worker.runner.commands import recorded, signal_recorded
from worker.runner.streams import ExecRequest

pytestmark = pytest.mark.integration


def test_a_recorded_command_is_signalled_though_the_record_is_removed(tmp_path):
    """A session that ends removes it, when the engine has taken the last signal and not yet carried it out."""
    assert signal_recorded(tmp_path, "session-s", "KILL") is None, "it has not begun"
    request = ExecRequest("s", ("sh", "-c", "echo up; exec sleep 600"))
    command = recorded(request, str(tmp_path / "session-s"))
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        assert child.stdout.readline() == b"up\n"
        kill = signal_recorded(tmp_path, "session-s", "KILL")
        (tmp_path / "session-s").unlink()
        subprocess.run(kill, check=True)
        assert child.wait() == -9


@pytest.mark.parametrize("pid", ["1", "0", "-1", "", "x", "9" * 100])
def test_what_a_job_writes_in_place_of_the_record_signals_nothing_else(tmp_path, pid):
    (tmp_path / "session-s").write_text(f"{pid}\n")
    assert signal_recorded(tmp_path, "session-s", "KILL") is None
    (tmp_path / "session-s").unlink()
    os.mkfifo(tmp_path / "session-s")
    assert signal_recorded(tmp_path, "session-s", "KILL") is None
