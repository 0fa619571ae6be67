"""Jobs on a Slurm cluster: a worker on a login node, an ordinary user there, hands them over by sbatch.

The folders of GRADIENT_HOME are on a file system that the compute nodes share. A job waits in Slurm's queue, and the
launch with it, in a thread that sleeps. What is known of a job is in its control folder; Slurm is asked by one query
for all jobs (`follower.py`), and its word alone ends none as long as it knows the job.
"""

import json
import re
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from pathlib import Path

from core.catalogue.backends import BACKENDS
from core.jobs.states import WAITING_PHASE
from core.settings import Settings
from worker.backends.base import (
    Backend,
    Exit,
    Handle,
    LaunchError,
    LaunchSpec,
    Progress,
    UnusedImage,
    WaitsElsewhere,
    scratch_handle,
    write_command,
)
from worker.backends.port_forwarder import PortForwarder
from worker.backends.slurm import job_exec, nodes, submission
from worker.backends.slurm.commands import Commands, SlurmError
from worker.backends.slurm.containers import Containers, image_digest
from worker.backends.slurm.ends import EndedJobs, modified
from worker.backends.slurm.follower import PENDING, RUNNING, Follower, is_started
from worker.backends.slurm.node import USAGE_FILE
from worker.backends.slurm.submission import attempt_of, key_of, unlink_member
from worker.backends.slurm.submitter import ID_FILE, Submitter
from worker.backends.slurm.text import SlurmJob
from worker.runner.control_files import (
    STOPPING_FILE,
    may_have_launched,
    read_control,
    read_part,
    write_control_file,
)
from worker.runner.streams import ExecRefused, ExecRequest, ProcessStream, SocketStream

_NAME = re.compile(r"(j[a-z0-9]+)-([0-9]+)\Z")
# Number of the job, which is not that of its array, and its partition; then `alone` once nothing of it is left beside
# the batch script.
_NUMBER_FILE = "slurm_number"
_KILLED_FILE = "killed"
_ALONE_SECONDS = 0.1  # between looks for `alone`
_CHECK_SECONDS = 1.0  # between looks at requests to stop a job that waits
_END_SECONDS = 10.0  # for a job whose command has ended, until Slurm says so, too
_REMOVE_SECONDS = 60.0
_LINE_BYTES = 1000


class SlurmBackend(Backend):
    """See the module. One instance serves all attempt threads of a worker."""

    capabilities = BACKENDS["slurm"].capabilities

    def __init__(self, settings: Settings) -> None:
        self._root, self._attempts = settings.root, settings.root / "attempts"
        self._commands = Commands(settings.slurm)
        self._follower = Follower(self._commands, settings.slurm.poll_seconds)
        self._ends = EndedJobs(self._commands)
        self._containers = Containers(settings, self._commands)
        self._nodes = nodes.Nodes()
        self._ports = PortForwarder(settings.ports.bind, self._connect)
        self._submitter = Submitter(settings, self._commands, self._follower)
        self._submitting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        spec.check()  # whether the job was stopped meanwhile
        self._submitter.raise_if_prepared(spec)
        with self._submitting[spec.name]:
            job_id = self._submitter.find(spec, progress)
            if job_id is None:
                if not may_have_launched(spec.control):
                    self._ports.check(spec.name, spec.ports)
                    write_command(spec)
                    nodes.make_folders(spec)
                    if spec.container is not None:
                        self._containers.prepare(spec, progress)
                    submission.write_environment(spec)
                job_id = self._submitter.submit(spec, confirm, progress)
            else:
                confirm()
        self._submitting.pop(spec.name, None)
        self._follow(spec.name, spec.control)
        job = self._await_start(spec, progress)
        handle = spec.base_handle() | image_digest(spec.control)
        handle |= {"ports": [(port.external, port.internal) for port in spec.ports]}
        names = nodes.list_names(self._commands, spec, job.nodes)
        partition = job.partition or "".join(_read_number(spec.control)[1:2])
        allocation = {"zone": partition, "name": job_id, "type": "slurm", "url": None, "addresses": names}
        started_at = modified(spec.control / "started") if is_started(spec.control) else None
        ran = max(0.0, time.time() - started_at) if started_at is not None else 0.0
        times = {"began": time.monotonic() - ran, "stop_grace": spec.job_spec.stop_grace}
        return handle | times | {"allocation": allocation}

    def submit_members(self, names: Collection[str], limit: int | None) -> None:
        self._submitter.submit_members(names, limit)

    def has_containers(self) -> bool:
        with suppress(LaunchError):
            return self._containers.find_program() is not None
        return False

    def build(self, spec: LaunchSpec, progress: Progress) -> str:
        del spec, progress
        raise LaunchError("image_build", "jobs on Slurm clusters cannot build images")

    def data_folder(self) -> Path | None:
        return self._containers.images.folder

    def prune_images(self, *, everything: bool, dry_run: bool = False) -> list[UnusedImage]:
        return self._containers.images.prune(everything=everything, dry_run=dry_run)

    def _await_start(self, spec: LaunchSpec, progress: Progress) -> SlurmJob:
        """Return a job that waits no longer in Slurm's queue. Raises `WaitsElsewhere`: it does."""
        spec.check()
        job = self._follower.job(spec.name)
        if job is not None and job.state not in PENDING:
            return job
        if is_started(spec.control) and spec.job_spec.nodes is None:  # of several nodes, Slurm has the names
            return job or SlurmJob("", "RUNNING", spec.name)
        if self._follower.is_missing(spec.name):
            raise LaunchError("slurm_cancelled", "Slurm no longer knows the job, which never began")
        self._follower.await_start(spec.name, spec.control, partial(progress, WAITING_PHASE), spec.resume)
        raise WaitsElsewhere

    def _follow(self, name: str, control: Path) -> None:
        if not self._follower.follows(name):
            self._follower.follow(name, key_of(control), read_control(control, ID_FILE))

    def ended(self, handle: Handle) -> Exit | None:
        return self._nodes.follow(handle, self._find_end(handle))

    def node_exits(self, handle: Handle) -> dict[str, int | None]:
        return self._nodes.exits(handle)

    def _find_end(self, handle: Handle) -> Exit | None:
        name, control = handle["name"], Path(handle["control"])
        code = nodes.read_whole_code(control)
        if code == 0 and read_control(control, STOPPING_FILE) is None:
            return Exit(0)
        self._follow(name, control)
        job = self._follower.job(name)
        if job is not None and job.state not in PENDING | RUNNING:
            return self._ends.of(job, control, code)
        if job is not None and job.state in PENDING and is_started(control):
            return self._ends.requeued(job, code)
        if code is None:
            self._ports.serve(handle)
        return self._ends.without_answer(name, control, code, missing=self._follower.is_missing(name))

    def signal(self, handle: Handle, *, grace: bool) -> None:
        control = Path(handle["control"])
        if grace:
            write_control_file(control, STOPPING_FILE, "asked to end")
            self._signal_batch(handle, "USR1")
        elif read_control(control, _KILLED_FILE) is None:
            write_control_file(control, _KILLED_FILE, "its programs")
            self._signal_batch(handle, "USR2")  # the wrapper records how they ended
        else:
            self._cancel(handle)

    def warn(self, handle: Handle, number: int) -> None:
        del number  # the batch script knows it
        self._signal_batch(handle, "HUP")

    def _signal_batch(self, handle: Handle, name: str) -> None:
        control = Path(handle["control"])
        if (job_id := read_control(control, ID_FILE)) is not None:
            self._scancel(control, "--batch", "--state=RUNNING", f"--signal={name}", job_id)

    def _cancel(self, handle: Handle) -> None:
        name, control = handle["name"], Path(handle["control"])
        if key_of(control) == name:
            self._scancel(control, "--signal=KILL", f"--user={self._commands.user}")
            return
        until = time.monotonic() + _END_SECONDS
        while (job := self._follower.job(name)) is None and time.monotonic() < until:
            if self._follower.is_missing(name):
                return
            self._follower.wait_for_answer(_CHECK_SECONDS)
        if job is not None:
            self._scancel(control, "--state=RUNNING", "--signal=KILL", job.id)
        if job is not None and not self._follower.is_missing(name, 1):
            # With a signal or another filter, scancel ends all members that wait, whichever it was given.
            self._run_scancel(job.id)

    def _scancel(self, control: Path, *arguments: str) -> None:
        """Signal a job, unless its number is another one's by now: of a cluster that has lost its state."""
        self._run_scancel(f"--name={key_of(control).partition('/')[0]}", *arguments)

    def _run_scancel(self, *arguments: str) -> None:
        with suppress(SlurmError):  # it has ended, or is cancelled again
            self._commands.run("scancel", *arguments)

    def destroy(self, handle: Handle) -> None:
        name, control = handle["name"], Path(handle["control"])
        self._ports.close(name)
        self._follow(name, control)
        has_ended = nodes.read_whole_code(control) is not None
        if has_ended:
            self._await_gone(handle, _END_SECONDS)
        if not self._is_gone(handle):
            self._cancel(handle)
            self._await_gone(handle, _END_SECONDS if has_ended else _REMOVE_SECONDS)
        # Outputs of a command that has ended are not kept waiting by a daemon that is away; a sweep removes the rest.
        if not self._is_gone(handle) and not has_ended:
            job = self._follower.job(name)
            why = self._follower.problem or f"Slurm job {job.id if job else '?'} is {job.state if job else 'unknown'}"
            raise LaunchError("launch_failed", why)
        self._follower.forget(name)
        self._ends.forget(name)
        self._nodes.forget(name)
        unlink_member(control)

    def _await_gone(self, handle: Handle, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_gone(handle) and time.monotonic() < until:
            self._follower.wait_for_answer(_ALONE_SECONDS)

    def _is_gone(self, handle: Handle) -> bool:
        """Return whether no process of the job is left, as the batch script has written, or Slurm says."""
        if "alone" in _read_number(Path(handle["control"]))[2:]:
            return True
        job = self._follower.job(handle["name"])
        if job is None or job.state in PENDING:  # a member that was cancelled while it waited is listed no more
            return self._follower.is_missing(handle["name"])
        return job.state not in RUNNING

    def owned(self) -> list[Handle]:
        try:
            listed = self._follower.list_jobs()
        except SlurmError as error:
            raise LaunchError("launch_failed", str(error)) from error
        living = [job for job in listed if job.state in PENDING | RUNNING]
        names = {attempt_of(self._root, job) for job in living if self._is_own(job)}
        matches = filter(None, map(_NAME.match, names))
        return [scratch_handle(self._attempts, match[1], int(match[2])) for match in matches]

    def _is_own(self, job: SlurmJob) -> bool:
        """Return whether a job is this service's: the same user may have several."""
        folder = self._attempts / attempt_of(self._root, job)
        left = job.state != "COMPLETING" and job.comment == submission.comment(folder / "control")
        return left or folder.is_dir()

    def run_in_job(self, handle: Handle, request: ExecRequest) -> ProcessStream:
        return job_exec.run_in_job(self._commands, handle, self._running_id(handle), request)

    def connect_to_job(self, handle: Handle, port: int, session_id: str) -> SocketStream:
        del session_id  # the connection needs no name
        return SocketStream(self._connect(handle, port))

    def _connect(self, handle: Handle, port: int) -> socket.socket:
        return job_exec.connect_to_job(self._commands, handle, self._running_id(handle), port)

    def _running_id(self, handle: Handle) -> str:
        number = _read_number(Path(handle["control"]))
        gone = self._is_gone(handle) or self._follower.is_missing(handle["name"], 1)  # its number may be another one's
        if not number or gone or not is_started(Path(handle["control"])):
            raise ExecRefused("The job has no process to enter: it is starting or has just ended.")
        return number[0]

    def sample(self, handle: Handle) -> dict[str, float]:
        try:
            values = json.loads(read_control(Path(handle["control"]), USAGE_FILE, _LINE_BYTES) or "{}")
            return {str(name): float(value) for name, value in values.items()}
        except (ValueError, TypeError, AttributeError):  # the job can write there
            return {}


def _read_number(control: Path) -> list[str]:
    """Return the words of the batch script's file; none before it has begun."""
    return (read_part(control, _NUMBER_FILE, 0, _LINE_BYTES) or b"").decode("ascii", "replace").split()
