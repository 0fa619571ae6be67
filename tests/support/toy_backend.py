"""A whole launcher: it runs jobs as plain processes of the worker's user. docs/backends.md walks it.

It keeps nothing that a restarted worker would miss: a job's process is found by the pid that the wrapper wrote, and
verified by the job's variables in its environment.
"""

import subprocess
import time
from pathlib import Path

from core.catalogue.backends import BackendType, Capabilities
from worker.backends.base import (
    WRAPPER,
    Backend,
    Exit,
    LaunchError,
    mark_launched,
    write_command,
)
from worker.backends.job_processes import JobProcesses, find_running
from worker.backends.port_check import check_ports_free
from worker.backends.process.plain_start import inherited_environment
from worker.backends.termination import Terminations, warn
from worker.runner.control_files import (
    STOPPING_FILE,
    may_have_launched,
    read_control,
    read_exit_code,
    read_pid,
    write_control_file,
)
from worker.runner.usage import UsageMeter

START_SECONDS = 15.0


class ToyBackend(Backend):
    capabilities = Capabilities(shared_storage=True)

    def __init__(self, settings):
        self._attempts, self._bind = settings.root / "attempts", settings.ports.bind
        self._terminations = Terminations()

    def launch(self, spec, confirm, progress):
        progress("provisioning", None)  # raises if the job was stopped meanwhile
        if not may_have_launched(spec.control):
            check_ports_free(self._bind, spec.ports)
            write_command(spec)
        confirm()  # the last moment: another worker may hold the job by now
        if read_control(spec.control, "started") is None:
            mark_launched(spec)
            self._start(spec)
        return spec.base_handle() | {"stop_grace": spec.job_spec.stop_grace, "stop_signal": spec.stop_signal}

    def _start(self, spec):
        """Start the wrapper; of several starts at once, its lock lets one run the command."""
        try:
            subprocess.run(
                # No child of the worker, which may end first.
                ["setsid", "--fork", str(WRAPPER), str(spec.control), "", str(spec.stop_signal)],
                cwd=spec.working_dir or spec.workspace,
                env=inherited_environment(spec.python) | spec.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError) as error:
            raise LaunchError("launch_failed", str(error)) from error
        until = time.monotonic() + START_SECONDS
        while read_control(spec.control, "started") is None and time.monotonic() < until:
            time.sleep(0.01)

    def ended(self, handle):
        control, processes = Path(handle["control"]), _processes(handle)
        self._terminations.proceed(handle, _processes)
        alive = processes.leader_alive()  # first: it may end between the two
        code = read_exit_code(control)
        if code is None:
            began = read_control(control, "started") is not None
            return None if alive else Exit(None, "process_lost" if began else "never_started")
        if read_control(control, STOPPING_FILE) is not None and any(processes.all()):
            return None  # other programs of the job may still be saving
        return Exit(code)

    def signal(self, handle, *, grace):
        if grace:
            write_control_file(Path(handle["control"]), STOPPING_FILE, "asked to end")
            self._terminations.begin(handle, _processes(handle))
        else:
            _processes(handle).kill(spare_leader=True)  # the wrapper, which records the exit code

    def warn(self, handle, number):
        warn(_processes(handle), Path(handle["control"]), number, handle["stop_signal"])

    def destroy(self, handle):
        _processes(handle).kill(spare_leader=False)
        self._terminations.forget(handle["name"])

    def owned(self):
        return find_running(self._attempts)

    def sample(self, handle):
        _, memory, count = _processes(handle).usage(UsageMeter())
        return {"memory_bytes": float(memory), "processes": float(count)}


def _processes(handle):
    """Return the processes of a job; what the job wrote in place of the wrapper's pid names none."""
    return JobProcesses(handle["job_id"], handle["attempt"], read_pid(Path(handle["control"])))


TOY = BackendType(path="support.toy_backend:ToyBackend", capabilities=ToyBackend.capabilities, enabled=lambda _: True)
