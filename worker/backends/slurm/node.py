"""Prepares a job on its compute node, stops it in order, kills its programs, measures it, or connects to its ports.

python -m worker.backends.slurm.node prepare|stop|warn|kill|measure|connect CONTROL JOB ATTEMPT GRACE|PORT SIGNALS
"""

import json
import os
import re
import shlex
import socket
import sys
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from core.jobs.exec.channel import CHUNK_BYTES
from core.system.filesystem import write_all, write_atomically
from worker.backends.docker.gpu.host_gpus import GpuMonitor
from worker.backends.job_processes import JobProcesses
from worker.backends.process.process_exec import connect_to_processes
from worker.backends.termination import Termination, warn
from worker.runner.control_files import read_control, read_part, read_pid
from worker.runner.streams import ExecRefused, SocketStream
from worker.runner.usage import UsageMeter

USAGE_FILE = "usage"
PORTS_FILE = "ports"  # numbers of the ports that the job requests
VARIABLES_FILE = "node_environment"  # what only the node knows, as a shell reads it
_PORT = "GRADIENT_PORT_"
CONNECTED = "connected"
_LINE_BYTES, _VARIABLES_BYTES = 1000, 100_000
_STOP_SECONDS = 0.2
_MEASURE_SECONDS = 5.0


def _prepare(control: Path) -> None:
    """Write the variables with the job's ports: other jobs of the node may have the numbers that it requests."""
    requested = (read_control(control, PORTS_FILE, _LINE_BYTES) or "").split()
    names = (f"{_PORT}{port}" for port in requested)
    _write_variables(control, dict(zip(names, map(str, _free_ports(len(requested))))))  # noqa: B905 - Python 3.9


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


def _write_variables(control: Path, variables: dict[str, str]) -> None:
    lines = [f"export {name}={shlex.quote(value)}\n" for name, value in variables.items()]
    write_atomically(control / VARIABLES_FILE, "".join(lines).encode(), durable=False)


def _own_port(control: Path, port: int) -> int:
    """Return the port of this node that a port of the job is; of one that it did not request, the port itself."""
    variables = read_part(control, VARIABLES_FILE, 0, _VARIABLES_BYTES) or b""
    match = re.search(rb"^export %s%d=([0-9]+)$" % (_PORT.encode(), port), variables, re.MULTILINE)
    return int(match[1]) if match else port


def _stop(job: JobProcesses, grace: float, number: int) -> None:
    """Send the signal in the order of `termination.py`, and wait until no program of the job is left."""
    termination = Termination(grace, number)
    while any(process.pid != job.leader for process in job.all()):
        termination.proceed(job)
        time.sleep(_STOP_SECONDS)


def _measure(job: JobProcesses, control: Path) -> None:
    meter, monitor = UsageMeter(), GpuMonitor()
    gpus = list(filter(None, os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")))
    while job.leader_alive():
        usage = meter.sample(*job.usage(meter)) | monitor.sample(gpus)
        write_atomically(control / USAGE_FILE, f"{json.dumps(usage)}\n".encode(), durable=False)
        time.sleep(_MEASURE_SECONDS)


def _connect(job: JobProcesses, port: int) -> None:
    """Copy between a port of the job and this process's input and output."""
    try:
        stream = connect_to_processes(job, port)
    except ExecRefused as error:
        sys.exit(str(error))
    write_all(2, f"{CONNECTED}\n".encode())
    threading.Thread(target=_send_input, args=(stream,), daemon=True).start()
    for _, data in stream.outputs():
        write_all(1, data)


def _send_input(stream: SocketStream) -> None:
    while data := os.read(0, CHUNK_BYTES):
        stream.write(data)
    stream.end_input()


def main(action: str, folder: str, job_id: str, attempt: str, value: str, number: str = "", warning: str = "") -> None:
    control = Path(folder)
    job = JobProcesses(job_id, int(attempt), read_pid(control))
    if action == "prepare":
        _prepare(control)
    elif action == "stop":
        _stop(job, float(value), int(number))
    elif action == "warn":
        warn(job, control, int(warning), int(number))
    elif action == "kill":
        job.kill(spare_leader=True)
    elif action == "connect":
        _connect(job, _own_port(control, int(value)))
    else:
        _measure(job, control)


if __name__ == "__main__":
    main(*sys.argv[1:])
