"""Commands in jobs on compute nodes, and connections to their ports."""

import os

import psutil
import pytest
from support.backend_harness import BackendHarness
from support.deployment import wait_until

from core.settings.slurm import SlurmSettings
from worker.runner.streams import ExecRefused, ExecRequest, Terminal

pytestmark = [pytest.mark.integration, pytest.mark.slow]

ECHO = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
connection, _ = listener.accept()
connection.sendall(connection.recv(100).upper())
connection.close()
"""


@pytest.fixture
def place(slurm, tmp_path):  # noqa: ARG001 - where its jobs run
    place = BackendHarness("slurm", tmp_path, slurm=SlurmSettings(enabled=True))
    yield place
    place.clear()


def output_of(stream):
    return b"".join(data for number, data in stream.outputs() if number == 1)


@pytest.mark.parametrize("terminal", [None, Terminal(24, 99, "xterm")])
def test_a_command_has_the_jobs_variables_folder_and_allocation(place, slurm, terminal):
    spec, handle = place.running("echo up; sleep 600", env={"GREETING": "it's"})
    command = 'echo "$GREETING $SLURM_JOB_ID $PWD"; [ -t 1 ] && stty size; exit 3'
    stream = place.backend.run_in_job(handle, ExecRequest("s1", ("sh", "-c", command), terminal))
    expected = [f"it's {slurm.run('squeue', '-h', '-o', '%A')} {spec.workspace}", *(["24 99"] if terminal else [])]
    assert output_of(stream).decode().split("\r\n" if terminal else "\n")[:-1] == expected
    assert stream.exit_code() == 3
    stream.close()


def test_a_port_on_localhost_of_the_node_is_reached_and_no_other_one(place):
    (place.root / "echo.py").write_text(ECHO)
    spec = place.spec(f"python3 {place.root}/echo.py; sleep 600")
    handle = place.launch(spec)
    port = int(wait_until(lambda: place.output(spec), "the port"))
    stream = place.backend.connect_to_job(handle, port, "s1")
    stream.write(b"hello")
    assert output_of(stream) == b"HELLO"
    with pytest.raises(ExecRefused, match="Nothing in the job listens"):
        place.backend.connect_to_job(handle, 22, "s2")


def test_a_connection_that_is_closed_leaves_no_process_although_the_job_keeps_it_open(place):
    (place.root / "echo.py").write_text(ECHO.replace("connection.close()", "__import__('time').sleep(600)"))
    spec = place.spec(f"python3 {place.root}/echo.py")
    handle = place.launch(spec)
    port = int(wait_until(lambda: place.output(spec), "the port"))
    stream = place.backend.connect_to_job(handle, port, "s1")

    def list_sruns():
        own = psutil.process_iter(["name", "ppid"])
        return [child for child in own if (child.info["name"], child.info["ppid"]) == ("srun", os.getpid())]

    assert list_sruns()
    stream.close()
    wait_until(lambda: not list_sruns(), "srun to end")
    assert place.backend.ended(handle) is None
