"""A private Slurm cluster for tests: one controller, four nodes on this host, accounting if wanted."""

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from support.deployment import wait_until
from support.free_port import free_port
from support.servers.ssh_server import find_sshd

from core.system.processes import read_environment, running_processes

NODES = ("n1", "n2", "n3", "n4")
"""Two with two A100s each and the feature `fast`, one with two GPUs without a type, one without GPUs."""
ACCOUNT = "lab"
"""The account of the user who runs the tests, where there is accounting."""
_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")
_ACCOUNTING_PROGRAMS = ("slurmdbd", "mariadbd", "mariadb-install-db", "mariadb-admin", "sacct", "sacctmgr")
# Devices stand for the GPUs: Slurm only counts those that are there.
_GPUS = """\
NodeName=n[1-2] Name=gpu Type=a100 File=/dev/null,/dev/zero
NodeName=n3 Name=gpu File=/dev/null,/dev/zero
"""
_PARTITIONS = """\
PartitionName=main Nodes=n[1-4] Default=YES MaxTime=1-00:00:00 DefaultTime=10:00
PartitionName=short Nodes=n[1-2] MaxTime=10:00 MaxNodes=1
PartitionName=closed Nodes=n4 State=DOWN
"""


def find_slurm() -> str | None:
    """Slurm's controller; None if one of the programs of a cluster is not installed."""
    return _find("slurmctld") if all(map(_find, _PROGRAMS)) else None


def find_slurm_accounting() -> str | None:
    """Slurm's accounting daemon; None if it or its database is not installed."""
    return _find("slurmdbd") if find_slurm() and all(map(_find, _ACCOUNTING_PROGRAMS)) else None


REQUIREMENTS = {
    "slurm": (find_slurm, "Slurm is not installed (apt-get install slurmctld slurmd slurm-client munge)"),
    "slurm_accounting": (find_slurm_accounting, "no accounting of Slurm (apt-get install slurmdbd mariadb-server)"),
    "apptainer": (lambda: shutil.which("apptainer"), "Apptainer is not installed (apptainer.org has packages)"),
    "ssh_server": (find_sshd, "OpenSSH's server is not installed (apt-get install openssh-server)"),
}
"""Requirements of tests of Slurm, as in `tests/conftest.py`."""
CLUSTER_TYPE = """
[cluster]
backend = "slurm"
kind = "cpu"
accelerator = "4 CPUs"
count = 1
replicas = 1
memory_gb = 4
memory_bandwidth_gb_per_s = 20
tflops = { fp32 = 0.1 }
price_per_hour = 0
price_source = "not set"
spec_source = "sinfo"
slurm = { partition = "main", cpus = 1, time_limit = 3600 }
"""
"""A machine type of the cluster, for a file of machine types."""


class SlurmCluster:
    """Runs as the user who runs the tests, root or not, and runs jobs of this user only.

    Its daemons are named `munged`, `mariadbd`, `slurmdbd`, `slurmctld`, and as its nodes: `n1` to `n4`.

    Args:
        accounting: Whether there is a slurmdbd; it keeps limits, too.
        options: Lines of slurm.conf by name, besides those that are there or in place of them.
    """

    def __init__(self, *, accounting: bool = False, options: Mapping[str, str] | None = None) -> None:
        # Socket paths are limited to about 100 bytes: not under pytest's deep folders.
        self.folder = Path("/tmp") / f"gradient-slurm-{uuid.uuid4().hex[:12]}"
        self._accounting = accounting
        self._options = dict(options or {})
        self.user = pwd.getpwuid(os.getuid()).pw_name
        self._controller_port = free_port()
        self._accounting_port = free_port()
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    @property
    def environment(self) -> dict[str, str]:
        """Leads Slurm's commands to this cluster."""
        return {"SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        self.folder.mkdir(mode=0o711)
        self.folder.chmod(0o711)  # munged wants every user to reach its socket
        for name in ("state", "database", *NODES):
            (self.folder / name).mkdir(mode=0o700)
        self._write_files()
        self.start_daemon("munged")
        wait_until((self.folder / "munge.sock").exists, "munged to listen")
        if self._accounting:
            self._start_accounting()
        for name in ("slurmctld", *NODES):
            self.start_daemon(name)
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Wait until each node takes jobs."""
        wait_until(lambda: self.node_states() == dict.fromkeys(NODES, "idle"), "the nodes to be idle")

    def node_states(self) -> dict[str, str]:
        """States of the nodes by name; empty if the controller does not answer."""
        done = self.try_run("sinfo", "-h", "-N", "-o", "%N %T")
        return dict(line.split() for line in done.stdout.splitlines()) if done.returncode == 0 else {}

    def run(self, *command: str) -> str:
        """Return what one of Slurm's commands writes; it has to succeed."""
        done = self.try_run(*command)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def try_run(self, *command: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, **self.environment}
        return subprocess.run(
            command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False, timeout=60
        )

    def start_daemon(self, name: str) -> None:
        """Start a daemon over the state that it left."""
        with (self.folder / f"{name}.out").open("ab") as output:
            environment = {**os.environ, **self.environment, "MYSQL_UNIX_PORT": str(self.folder / "mysql.sock")}
            if name in NODES:
                environment["SLURMD_NODENAME"] = name  # as in jobs: their processes are found by it
            self._daemons[name] = subprocess.Popen(
                self._command(name),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=self.folder,
            )

    def ended_daemons(self) -> list[str]:
        """Daemons that have ended by themselves."""
        return [name for name, daemon in list(self._daemons.items()) if daemon.poll() is not None]

    def kill(self, name: str) -> None:
        """Kill a daemon, as a crash does. Jobs of a node go on without it."""
        daemon = self._daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def save(self, job: str) -> None:
        """Have the controller write down what it knows of a job: when killed, it forgets the last seconds."""
        began = time.time()
        self.run("scontrol", "update", f"jobid={job}", "admincomment=saved")
        saved = self.folder / "state" / "job_state"
        wait_until(lambda: saved.exists() and saved.stat().st_mtime > began, "the controller to save its state")

    def end(self, name: str) -> None:
        """End a daemon as an administrator does."""
        daemon = self._daemons.pop(name)
        daemon.terminate()
        daemon.wait(timeout=60)

    def fail_node(self, node: str) -> None:
        """Kill a node's daemon and all that runs there, as a power failure does."""
        self.kill(node)
        wait_until(lambda: not _kill_all(self.processes(node)), f"the jobs on {node} to be gone")

    def freeze(self, name: str) -> None:
        """Suspend a daemon: connections are accepted, but nothing answers."""
        self._daemons[name].send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Let a daemon go on where it was."""
        self._daemons[name].send_signal(signal.SIGCONT)

    def read_log(self, name: str) -> str:
        """A daemon's own log."""
        return (self.folder / f"{name}.out").read_text(errors="replace")

    def stop(self) -> None:
        """End it, whatever state it is in; nothing of it or of its jobs stays."""
        for name in reversed(list(self._daemons)):
            self.kill(name)
        wait_until(lambda: not _kill_all(self.processes()), "the processes of the cluster to be gone")
        shutil.rmtree(self.folder, ignore_errors=True)

    def processes(self, node: str = "") -> list[psutil.Process]:
        """Processes of jobs, and those that watch over them; with a node, only there."""
        return [process for process in running_processes() if self._is_of_job(process, node)]

    def _is_of_job(self, process: psutil.Process, node: str) -> bool:
        daemons = {daemon.pid for daemon in self._daemons.values()}
        try:
            environment = read_environment(process.pid, "SLURM")
        except psutil.Error:
            return False
        if process.pid in daemons or environment.get("SLURM_CONF") != str(self.conf):
            return False
        return environment.get("SLURMD_NODENAME", "").startswith(node or NODES)

    def _command(self, name: str) -> list[str]:
        folder = self.folder
        if name == "munged":
            files = {"socket": "munge.sock", "key-file": "munge.key", "pid-file": "munged.pid", "seed-file": "seed"}
            options = [f"--{option}={folder / file}" for option, file in files.items()]
            return [_program(name), "--foreground", *options, f"--log-file={folder / 'munged.log'}", "--num-threads=10"]
        if name == "mariadbd":
            speed = ("--innodb-flush-log-at-trx-commit=0", "--innodb-buffer-pool-size=32M", "--innodb-log-file-size=8M")
            return [_program(name), *self._database_options(), "--skip-networking", "--skip-grant-tables", *speed]
        return [_program("slurmd"), "-D", "-N", name] if name in NODES else [_program(name), "-D"]

    def _database_options(self) -> list[str]:
        folder = self.folder
        files = [f"--datadir={folder / 'database'}", f"--socket={folder / 'mysql.sock'}"]
        return ["--no-defaults", f"--user={self.user}", *files, f"--pid-file={folder / 'mysql.pid'}"]

    def _start_accounting(self) -> None:
        install = [_program("mariadb-install-db"), *self._database_options(), "--skip-test-db"]
        subprocess.run(install, check=True, capture_output=True, cwd=self.folder)
        self.start_daemon("mariadbd")
        ping = (_program("mariadb-admin"), "--no-defaults", f"--socket={self.folder / 'mysql.sock'}", "ping")
        wait_until(lambda: self.try_run(*ping).returncode == 0, "MariaDB to answer")
        self.start_daemon("slurmdbd")
        show = ("sacctmgr", "-n", "show", "cluster")
        wait_until(lambda: self.try_run(*show).returncode == 0, "slurmdbd to answer")
        self.run("sacctmgr", "-i", "add", "cluster", "test")
        self.run("sacctmgr", "-i", "add", "account", ACCOUNT)
        self.run("sacctmgr", "-i", "add", "user", self.user, f"account={ACCOUNT}")

    def _write_files(self) -> None:
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(128))
        (self.folder / "munge.key").chmod(0o600)
        (self.folder / "plugstack.conf").touch()
        (self.folder / "gres.conf").write_text(_GPUS)
        options = self._slurm_options() | self._options
        lines = "".join(f"{name}={value}\n" for name, value in options.items())
        self.conf.write_text(lines + "\n".join(self._node_lines()) + "\n" + _PARTITIONS)
        if self._accounting:
            options = self._accounting_options()
            file = self.folder / "slurmdbd.conf"
            file.write_text("".join(f"{name}={value}\n" for name, value in options.items()))
            file.chmod(0o600)

    def _node_lines(self) -> Iterator[str]:
        gpus = {"n1": "Gres=gpu:a100:2 Feature=fast", "n2": "Gres=gpu:a100:2 Feature=fast", "n3": "Gres=gpu:2"}
        address = f"NodeHostname={_host()} NodeAddr=127.0.0.1"
        for node in NODES:
            yield f"NodeName={node} {address} Port={free_port()} CPUs=4 RealMemory=8000 {gpus.get(node, '')}"

    def _slurm_options(self) -> dict[str, str]:
        folder = self.folder
        options = {
            "ClusterName": "test",
            "SlurmctldHost": f"{_host()}(127.0.0.1)",
            "SlurmctldPort": str(self._controller_port),
            "SlurmUser": self.user,
            "SlurmdUser": self.user,
            "AuthInfo": f"socket={folder / 'munge.sock'}",
            "StateSaveLocation": str(folder / "state"),
            "SlurmdSpoolDir": str(folder / "%n"),
            "SlurmctldPidFile": str(folder / "slurmctld.pid"),
            "SlurmdPidFile": str(folder / "slurmd-%n.pid"),
            "PlugStackConfig": str(folder / "plugstack.conf"),
            "MailProg": "/bin/true",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "MpiDefault": "none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_Core_Memory",
            "SlurmdParameters": "config_overrides",  # the nodes are larger than this host
            "GresTypes": "gpu",
            "Licenses": "matlab:1",
            "DefMemPerCPU": "500",
            "ReturnToService": "2",
            "SchedulerParameters": "sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0",
            "SlurmdTimeout": "5",
            "MessageTimeout": "5",
            "KillWait": "5",
            "JobRequeue": "1",
        }
        if self._accounting:
            options |= {
                "AccountingStorageType": "accounting_storage/slurmdbd",
                "AccountingStorageHost": "127.0.0.1",
                "AccountingStoragePort": str(self._accounting_port),
                "AccountingStoragePass": str(folder / "munge.sock"),
                "AccountingStorageTRES": "gres/gpu",
                "AccountingStorageEnforce": "limits,qos",
            }
        return options

    def _accounting_options(self) -> dict[str, str]:
        folder = self.folder
        return {
            "AuthType": "auth/munge",
            "AuthInfo": f"socket={folder / 'munge.sock'}",
            "DbdHost": _host(),
            "DbdAddr": "127.0.0.1",
            "DbdPort": str(self._accounting_port),
            "SlurmUser": self.user,
            "PidFile": str(folder / "slurmdbd.pid"),
            "StorageType": "accounting_storage/mysql",
            "StorageHost": "localhost",  # by the socket that MYSQL_UNIX_PORT names
            "StorageUser": self.user,
        }


@contextlib.contextmanager
def running_cluster(*, accounting: bool = False, options: Mapping[str, str] | None = None) -> Iterator[SlurmCluster]:
    """A cluster that is gone at the end."""
    cluster = SlurmCluster(accounting=accounting, options=options)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _find(program: str) -> str | None:
    return shutil.which(program) or shutil.which(program, path="/usr/sbin:/sbin")


def _program(name: str) -> str:
    path = _find(name)
    assert path is not None, f"{name} is not installed"
    return path


def _host() -> str:
    return socket.gethostname().split(".")[0]


def _kill_all(processes: list[psutil.Process]) -> list[psutil.Process]:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    return processes
