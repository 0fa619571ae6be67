"""Stops a job on its compute node in order, kills its programs, measures it, or connects to one of its ports.

python -m worker.backends.slurm.node stop|kill|measure|connect CONTROL JOB ATTEMPT GRACE|PORT
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

from core.jobs.exec.channel import CHUNK_BYTES
from core.system.filesystem import write_all, write_atomically
from worker.backends.job_processes import JobProcesses
from worker.backends.process.process_exec import connect_to_processes
from worker.backends.termination import Termination
from worker.runner.control_files import read_pid
from worker.runner.streams import ExecRefused, SocketStream
from worker.runner.usage import UsageMeter

USAGE_FILE = "usage"
CONNECTED = "connected"
_STOP_SECONDS = 0.2
_MEASURE_SECONDS = 5.0


def _stop(job: JobProcesses, grace: float) -> None:
    """Send SIGTERM in the order of `termination.py`, and wait until no program of the job is left."""
    termination = Termination(grace)
    while any(process.pid != job.leader for process in job.all()):
        termination.proceed(job)
        time.sleep(_STOP_SECONDS)


def _measure(job: JobProcesses, control: Path) -> None:
    meter = UsageMeter()
    while job.leader_alive():
        usage = meter.sample(*job.usage(meter))
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


def main(action: str, folder: str, job_id: str, attempt: str, value: str) -> None:
    control = Path(folder)
    job = JobProcesses(job_id, int(attempt), read_pid(control))
    if action == "stop":
        _stop(job, float(value))
    elif action == "kill":
        job.kill(spare_leader=True)
    elif action == "connect":
        _connect(job, int(value))
    else:
        _measure(job, control)


if __name__ == "__main__":
    main(*sys.argv[1:])
