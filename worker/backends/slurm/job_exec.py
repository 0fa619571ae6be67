"""Commands in a job on its compute node, and connections to its ports: as steps of the job, by srun."""

import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

from worker.backends.base import Handle
from worker.backends.slurm.commands import Commands
from worker.backends.slurm.containers import START_FILE
from worker.backends.slurm.node import CONNECTED
from worker.backends.slurm.submission import ENVIRONMENT_FILE, EXPORTED
from worker.runner.commands import start_command
from worker.runner.streams import ExecRefused, ExecRequest, ProcessStream

_STEP = f"--overlap --relative=0 --nodes=1 --ntasks=1 --unbuffered --quit-on-interrupt --export={EXPORTED}".split()
_END_SECONDS = 5.0  # for what was written last to reach the job
_WITHOUT_STDERR = 'exec "$@" 2>/dev/null'
_ENTER = f'[ ! -e "$0/{START_FILE}" ] || . "$0/{START_FILE}"; . "$0/{ENVIRONMENT_FILE}" && exec "$@"'
"""In a container, the first of these files replaces the shell."""


class _Connection(socket.socket):
    """A connection by a step, which ends with it: srun itself would wait for ever if the cluster is gone."""

    step: subprocess.Popen[bytes] | None = None

    def shutdown(self, how: int) -> None:
        super().shutdown(how)
        if how == socket.SHUT_RDWR:
            self._end_step()

    def close(self) -> None:
        super().close()
        self._end_step()

    def _end_step(self) -> None:
        if self.step is not None and self.step.poll() is None:
            timer = threading.Timer(_END_SECONDS, self.step.kill)
            timer.daemon = True
            timer.start()


def run_in_job(commands: Commands, handle: Handle, job_id: str, request: ExecRequest) -> ProcessStream:
    """Start a command with the job's variables, in its folder. Raises `ExecRefused`: it cannot be started."""
    folder = Path(handle["control"]).parent
    pty = ("--pty",) if request.terminal else ()
    step = (commands.path("srun"), f"--jobid={job_id}", *_STEP, *pty, "/bin/sh", "-c", _ENTER)
    command = commands.on_login_node([*step, str(folder), *request.command], *(("-tt",) if pty else ()))
    # In a terminal the command's stderr is part of its output, and srun's own is only about its exit code.
    local = ("/bin/sh", "-c", _WITHOUT_STDERR, "sh") if pty else ()
    return start_command(replace(request, command=(*local, *command)), commands.environment(), "/")


def connect_to_job(commands: Commands, handle: Handle, job_id: str, port: int) -> socket.socket:
    """Connect from the job's node: to programs of this job only, and also to those that listen on localhost alone."""
    program = (sys.executable, "-I", "-m", "worker.backends.slurm.node", "connect", handle["control"])
    command = (commands.path("srun"), f"--jobid={job_id}", *_STEP, *program)
    arguments = (handle["job_id"], str(handle["attempt"]), str(port))
    here, theirs = socket.socketpair()
    ours = _Connection(fileno=here.detach())
    with theirs:
        ours.step = step = subprocess.Popen(  # noqa: S603 - the cluster's own command
            commands.on_login_node([*command, *arguments]),
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=subprocess.PIPE,
            env=commands.environment(),
            start_new_session=True,
        )
    lines = []
    for line in step.stderr or ():
        lines.append(line.decode(errors="replace").strip())
        if lines[-1] == CONNECTED:
            threading.Thread(target=step.communicate, name=f"port-{port}", daemon=True).start()
            return ours
    ours.close()
    step.communicate()
    raise ExecRefused(lines[0] if lines else f"Port {port} of the job cannot be reached.")
