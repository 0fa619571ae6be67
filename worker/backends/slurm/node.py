"""Stops a job on its compute node in order, kills its programs, or measures it; `batch.sh` starts it there.

python -m worker.backends.slurm.node stop|kill|measure CONTROL JOB ATTEMPT GRACE
"""

import json
import sys
import time
from pathlib import Path

from core.system.filesystem import write_atomically
from worker.backends.job_processes import JobProcesses
from worker.backends.termination import Termination
from worker.runner.control_files import read_pid
from worker.runner.usage import UsageMeter

USAGE_FILE = "usage"
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


def main(action: str, folder: str, job_id: str, attempt: str, grace: str) -> None:
    control = Path(folder)
    job = JobProcesses(job_id, int(attempt), read_pid(control))
    if action == "stop":
        _stop(job, float(grace))
    elif action == "kill":
        job.kill(spare_leader=True)
    else:
        _measure(job, control)


if __name__ == "__main__":
    main(*sys.argv[1:])
