"""`make chaos-slurm`: break a Slurm cluster and the service that hands jobs over to it; then check every job."""

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from chaos.hosts import FaultTable, break_and_check, parse_arguments, timed_log
from cluster import Cluster, wait_until
from support.deployment import Deployment, Process
from support.free_port import free_port
from support.slurm_cluster import CLUSTER_TYPE, NODES, SlurmCluster, running_cluster

_SQUEUE = """#!/bin/sh
[ ! -e {folder}/empty ] || exit 0
exec squeue "$@"
"""
_PROGRAMS = ("sacct", "sbatch", "scancel", "scontrol", "srun")


class SlurmLab:
    """A cluster with accounting, and a service with one worker on its login node."""

    request, read = Cluster.request, Cluster.read

    def __init__(self, folder: Path, cluster: SlurmCluster) -> None:
        self.folder, self.cluster = folder, cluster
        self.allowed: dict[str, str] = {}  # jobs that somebody cancelled
        programs = folder / "bin"
        programs.mkdir()
        for name in _PROGRAMS:
            (programs / name).write_text(f'#!/bin/sh\nexec {name} "$@"\n')
        (programs / "squeue").write_text(_SQUEUE.format(folder=folder))
        for program in programs.iterdir():
            program.chmod(0o755)
        types = folder / "machines.toml"
        types.write_text(CLUSTER_TYPE.replace("[cluster]", "[CPU]"))
        self.deployment = Deployment(
            folder / "home",
            **cluster.environment,
            GRADIENT_MACHINES__FILE=str(types),
            GRADIENT_SLURM__ENABLED="1",
            GRADIENT_SLURM__BIN=str(programs),
            GRADIENT_WORKER__SLOTS="8",
        )
        self._commands = {
            "api": ("api", "--port", str(free_port())),
            "worker": ("worker", "--name", "w1"),
        }
        self._processes: dict[str, Process] = {}
        self.ended = threading.Event()
        threading.Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        """Start a daemon again that has ended by itself, as without munged, as systemd does."""
        while not self.ended.wait(1):
            for name in self.cluster.ended_daemons():
                self.cluster.start_daemon(name)

    def start(self, part: str) -> None:
        if part in self._commands:
            self._processes[part] = self.deployment.start(*self._commands[part])
        else:
            self.cluster.start_daemon(part)

    def kill(self, part: str) -> None:
        if part in self._commands:
            self._processes[part].kill()
        else:
            self.cluster.kill(part)

    def signal(self, part: str, number: signal.Signals) -> None:
        if part in self._commands:
            self._processes[part].signal(number)
        else:
            {signal.SIGSTOP: self.cluster.freeze, signal.SIGCONT: self.cluster.thaw}[number](part)

    def choose_running(self) -> tuple[str, str] | None:
        """Return a running job's id in Slurm and here."""
        with suppress(subprocess.TimeoutExpired):
            listed = self.cluster.try_run("squeue", "-h", "-t", "R", "-o", "%A %j").stdout.splitlines()
            if listed:
                slurm_id, name = random.choice(listed).split()  # noqa: S311
                return slurm_id, name.partition("-")[0]
        return None


def kill(lab: SlurmLab, part: str, seconds: float) -> None:
    lab.kill(part)
    time.sleep(seconds)
    lab.start(part)


def freeze(lab: SlurmLab, part: str, seconds: float) -> None:
    lab.signal(part, signal.SIGSTOP)
    time.sleep(seconds)
    lab.signal(part, signal.SIGCONT)


def cut_power(lab: SlurmLab, part: str, seconds: float) -> None:
    lab.cluster.fail_node(part)
    time.sleep(seconds)
    lab.start(part)


def answer_emptily(lab: SlurmLab, _: str, seconds: float) -> None:
    (lab.folder / "empty").touch()
    time.sleep(seconds)
    (lab.folder / "empty").unlink()


def cancel(lab: SlurmLab, _: str, __: float) -> None:
    if (job := lab.choose_running()) is not None:
        lab.allowed[job[1]] = "slurm_cancelled"
        lab.cluster.try_run("scancel", job[0])


def requeue(lab: SlurmLab, _: str, __: float) -> None:
    if (job := lab.choose_running()) is not None:
        lab.cluster.try_run("scontrol", "update", f"jobid={job[0]}", "requeue=1")
        lab.cluster.try_run("scontrol", "requeue", job[0])


FAULTS: FaultTable = {
    "slurmctld": [(kill, (0, 3, 10, 30), 4), (freeze, (3, 10, 30), 2)],
    "slurmdbd": [(kill, (3, 10, 30), 2), (freeze, (3, 30), 1)],
    "munged": [(kill, (1, 3, 10), 1)],
    **{node: [(kill, (0, 3, 15), 2), (freeze, (3, 15), 1), (cut_power, (1, 10), 2)] for node in NODES[:2]},
    "worker": [(kill, (0, 3, 10), 4), (freeze, (3, 10, 30), 2), (freeze, (90,), 1)],
    "api": [(kill, (0, 3), 2), (freeze, (3, 10), 1)],
    "squeue": [(answer_emptily, (3, 10, 30), 1)],
    "jobs": [(cancel, (0,), 1), (requeue, (0,), 2)],
}


def main() -> int:
    """Return 0 if there was no violation."""
    given, log = parse_arguments("chaos-slurm", __doc__), timed_log()
    log(f"seed {given.seed}, {given.faults} faults")
    first = {} if given.no_long_fault else {"slurmctld": (kill, 600.0)}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gradient-chaos-", dir="/var/tmp")))
        lab = SlurmLab(folder, stack.enter_context(running_cluster(accounting=True)))
        stack.callback(lab.deployment.stop)
        stack.callback(lab.ended.set)
        lab.start("api")
        wait_until((lab.deployment.home / "cli.json").exists, "the service")
        lab.start("worker")
        wrong = break_and_check(lab, FAULTS, given.seed, given.faults, log, first)
        wait_until(lambda: not lab.cluster.run("squeue", "-h"), "Slurm's queue to be empty")
    for one in wrong:
        log(one)
    return int(bool(wrong))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing is left
    sys.exit(main())
