"""The tuned Slurm of one host, in a folder of its own, for a comparison: `apt-get install slurmctld slurmd munge`."""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil

from bench.measure import MissingRequirement
from bench.service import free_port, wait_for

_PROGRAMS = "munged", "slurmctld", "slurmd", "sbatch", "sinfo"
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_LONGEST_SECONDS = 600
_TUNED = """\
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
ClusterName=bench
JobCompLoc={folder}/ended
JobCompType=jobcomp/filetxt
MaxArraySize=10001
MaxJobCount=100000
ProctrackType=proctrack/linuxproc
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,default_queue_depth=10000
SchedulerType=sched/builtin
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmUser=root
SlurmctldDebug=error
SlurmctldHost={host}(127.0.0.1)
SlurmctldLogFile={folder}/slurmctld.log
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldPort={ports[0]}
SlurmdDebug=error
SlurmdLogFile={folder}/slurmd.log
SlurmdPidFile={folder}/slurmd.pid
SlurmdPort={ports[1]}
SlurmdSpoolDir={folder}/spool
SlurmdUser=root
StateSaveLocation={folder}/state
SwitchType=switch/none
TaskPlugin=task/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE OverSubscribe=FORCE:32 State=UP
"""
"""Nothing that costs time without being needed for an array: no accounting, no control groups, no binding. From a
member's end to the next one's start it takes about 0.7 s, so that 32 at once on each CPU run 20 times as many."""


class Slurm:
    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self.environment = environment

    def run_array(self, command: str, count: int) -> float:
        """Run an array of `count` members; return the seconds to the end of the last one."""
        return self._run([[f"--array=0-{count - 1}"]], command, count)

    def run_jobs(self, command: str, count: int) -> float:
        """Run single jobs; return the seconds to the end of the last one."""
        return self._run([[]] * count, command, count)

    def _run(self, submissions: list[list[str]], command: str, count: int) -> float:
        before, began = self._count_ended(), time.perf_counter()
        for options in submissions:
            batch = ["sbatch", *options, "--output=/dev/null", f"--wrap={command}"]
            subprocess.run(batch, cwd=self._folder, env=self.environment, check=True, capture_output=True)
        wait_for(lambda: self._count_ended() >= before + count or None, "Slurm's jobs", _LONGEST_SECONDS)
        return time.perf_counter() - began

    def _count_ended(self) -> int:
        file = self._folder / "ended"
        return file.read_bytes().count(b"\n") if file.exists() else 0


@contextmanager
def run_slurm() -> Iterator[Slurm]:
    """Run its controller and its node.

    Raises:
        MissingRequirement: It is not installed, or this user may not run it.
    """
    if missing := [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]:
        packages = "apt-get install slurmctld slurmd slurm-client munge"
        raise MissingRequirement(f"Slurm is not installed: no {', '.join(missing)} ({packages})")
    if os.geteuid() != 0:
        raise MissingRequirement("Slurm's node runs as root only")
    host = socket.gethostname().partition(".")[0]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-bench-")))
        environment = {"PATH": _PATH, "SLURM_CONF": str(folder / "slurm.conf")}
        values = {"folder": folder, "host": host, "cpus": os.cpu_count(), "ports": (free_port(), free_port())}
        memory = psutil.virtual_memory().total // 2**20 - 100
        (folder / "slurm.conf").write_text(_TUNED.format(**values, memory=memory), encoding="utf-8")
        (folder / "key").write_bytes(secrets.token_bytes(1024))
        (folder / "key").chmod(0o400)
        for name in ("spool", "state"):
            (folder / name).mkdir()
        places = {
            "key-file": "key",
            "socket": "munge.socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        munged = [f"--{option}={folder / name}" for option, name in places.items()]
        for command in (["munged", "--foreground", "--force", *munged], ["slurmctld", "-D", "-c"], ["slurmd", "-D"]):
            process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            if command[0] == "munged":
                wait_for(lambda: (folder / "munge.socket").exists() or None, "munged")

        def is_ready() -> bool | None:
            done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, check=False)
            return True if done.stdout.strip() == b"idle" else None

        wait_for(is_ready, "Slurm's node")
        yield Slurm(folder, environment)
