"""Prepares a job on its compute node, stops it in order, kills its programs, measures it, or connects to its ports.

python -m worker.backends.slurm.node ACTION CONTROL JOB ATTEMPT GRACE|PORT [SIGNAL WARNING]

ACTION: meet, prepare, stop, warn, kill, measure or connect. Each of several nodes finds its rank's folder in CONTROL.
"""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from core.jobs.exec.channel import CHUNK_BYTES
from core.system.filesystem import write_all, write_atomically
from core.system.processes import read_environment
from worker.backends.docker.gpu.host_gpus import GpuMonitor
from worker.backends.hosts_log import host_folder
from worker.backends.job_processes import GONE, JobProcesses
from worker.backends.node_variables import describe_nodes, interface_of
from worker.backends.process.process_exec import connect_to_processes
from worker.backends.termination import Termination, warn
from worker.runner.control_files import STOPPING_FILE, read_control, read_part, read_pid, write_control_file
from worker.runner.streams import ExecRefused, SocketStream
from worker.runner.usage import UsageMeter

USAGE_FILE = "usage"
PORTS_FILE = "ports"  # numbers of the ports that the job requests
VARIABLES_FILE = "node_environment"  # what only the node knows, as a shell reads it
_PORT, _NODE = "GRADIENT_PORT_", "SLURMD_NODENAME"
_MEETING_FILE = "hosts/meeting"
FAILED_FILE = "hosts/failed"  # rank and exit code of the node that failed first
CONNECTED = "connected"
_LINE_BYTES, _VARIABLES_BYTES = 1000, 100_000
_STOP_SECONDS = 0.2
_MEASURE_SECONDS = 5.0


class _NodeProcesses(JobProcesses):
    """The processes of one node: several nodes may be on one host, as in tests of Slurm."""

    __slots__ = ()

    def _is_own(self, pid: int, session: int | None) -> bool:
        node = os.environ.get(_NODE)
        with suppress(*GONE):
            return super()._is_own(pid, session) and read_environment(pid, _NODE).get(_NODE) == node
        return False


def _meet(control: Path) -> None:
    """Write where the nodes of the allocation find each other: on the first one, before any begins."""
    names = _scontrol("show", "hostnames").split()
    shown = _scontrol("--oneliner", "show", "node", os.environ["SLURM_JOB_NODELIST"])
    addresses = dict(re.findall(r"^NodeName=(\S+).*? NodeAddr=(\S+)", shown, re.MULTILINE))
    meeting = [addresses.get(name, name) for name in names], _free_ports(1 + len(names))
    write_atomically(control / _MEETING_FILE, json.dumps(meeting).encode(), durable=False)


def _scontrol(*arguments: str) -> str:
    return subprocess.run(["scontrol", *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603, S607 - Slurm's own, which the batch script found


def _node_variables(main: Path, rank: int) -> dict[str, str]:
    addresses, (port, *ports) = json.loads((main / _MEETING_FILE).read_bytes())
    interface = None
    with suppress(OSError):
        interface = interface_of(socket.gethostbyname(addresses[rank]))
    variables = describe_nodes(rank, addresses, port, ports, interface)
    variables["GRADIENT_NODE_ADDRESSES"] = ",".join(addresses)
    if rank and not (main.parent / "container").exists():
        artifacts = str(main.parent / "artifacts" / "hosts" / str(rank))
        variables.update(dict.fromkeys(("GRADIENT_ARTIFACTS_DIR", "PS_MODEL_PATH"), artifacts))
        variables["GRADIENT_METRICS_FILE"] = str(host_folder(main, rank) / "metrics.jsonl")
    return variables


def _prepare(control: Path, nodes: dict[str, str]) -> None:
    """Write the variables of the node, with the job's ports: other jobs there may have the numbers that it requests."""
    requested = (read_control(control, PORTS_FILE, _LINE_BYTES) or "").split()
    names = (f"{_PORT}{port}" for port in requested)
    ports = dict(zip(names, map(str, _free_ports(len(requested)))))  # noqa: B905 - Python 3.9
    _write_variables(control, {**nodes, **ports})


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


def _stop(job: JobProcesses, control: Path, grace: float, number: int, *, kills: bool) -> None:
    """Send the signal in the order of `termination.py`, and wait until no program of the job is left.

    `kills`: whether it also kills them after the grace period: nobody else does.
    """
    kill_at = time.monotonic() + grace
    if read_control(control, STOPPING_FILE) is None:
        write_control_file(control, STOPPING_FILE, "asked to end")
    termination = Termination(grace, number)
    while any(process.pid != job.leader for process in job.all()):
        termination.proceed(job)
        if kills and time.monotonic() >= kill_at:
            job.kill(spare_leader=True)
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
    main_control = Path(folder)
    has_ranks = (main_control / "hosts").is_dir()
    rank = int(os.environ.get("SLURM_PROCID", "0")) if has_ranks else 0
    control = host_folder(main_control, rank) if rank else main_control
    job = _NodeProcesses(job_id, int(attempt), read_pid(control))
    if action == "prepare":
        _prepare(control, _node_variables(main_control, rank) if has_ranks else {})
    elif action == "meet":
        _meet(control)
    elif action == "stop":
        _stop(job, control, float(value), int(number), kills=(main_control / FAILED_FILE).exists())
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
