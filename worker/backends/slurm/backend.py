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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from core.catalogue.backends import BACKENDS
from core.catalogue.machine_types import Catalogue
from core.errors import MachineTypeUnknown
from core.jobs.states import WAITING_PHASE
from core.settings import Settings
from core.system.failpoints import failpoint
from worker.backends.base import (
    Backend,
    Exit,
    Handle,
    LaunchError,
    LaunchSpec,
    Progress,
    UnusedImage,
    mark_launched,
    scratch_handle,
    write_command,
)
from worker.backends.port_forwarder import PortForwarder
from worker.backends.slurm import job_exec, nodes, submission
from worker.backends.slurm.commands import Commands, SlurmError
from worker.backends.slurm.containers import Containers, image_digest
from worker.backends.slurm.ends import EndedJobs
from worker.backends.slurm.follower import PENDING, RUNNING, Follower, choose
from worker.backends.slurm.node import USAGE_FILE
from worker.backends.slurm.reasons import waiting_sentence
from worker.backends.slurm.text import SlurmJob
from worker.runner.control_files import (
    STOPPING_FILE,
    may_have_launched,
    read_control,
    write_control_file,
)
from worker.runner.streams import ExecRefused, ExecRequest, ProcessStream, SocketStream

_NAME = re.compile(r"(j[a-z0-9]+)-([0-9]+)\Z")
_ID_FILE = "slurm_job"  # in the control folder
_KILLED_FILE = "killed"
_CHECK_SECONDS = 1.0  # between looks at requests to stop a job that waits
_RETRY_SECONDS = 15.0
_END_SECONDS = 10.0  # for a job whose command has ended, until Slurm says so, too
_REMOVE_SECONDS = 60.0
_USAGE_BYTES = 1000


class SlurmBackend(Backend):
    """See the module. One instance serves all attempt threads of a worker."""

    capabilities = BACKENDS["slurm"].capabilities

    def __init__(self, settings: Settings) -> None:
        self._settings, self._attempts = settings, settings.root / "attempts"
        self._commands = Commands(settings.slurm)
        self._follower = Follower(self._commands, settings.slurm.poll_seconds)
        self._ends = EndedJobs(self._commands)
        self._containers = Containers(settings, self._commands)
        self._nodes = nodes.Nodes()
        self._ports = PortForwarder(settings.ports.bind, self._connect)
        self._submitting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def launch(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> Handle:
        progress("provisioning", None)  # raises if the job was stopped meanwhile
        with self._submitting[spec.name]:
            job_id = self._find(spec, progress)
            if job_id is None:
                if not may_have_launched(spec.control):
                    self._ports.check(spec.name, spec.ports)
                    write_command(spec)
                    nodes.make_folders(spec)
                    if spec.container is not None:
                        self._containers.prepare(spec, progress)
                    submission.write_environment(spec)
                failpoint("created")
                confirm()
                failpoint("confirmed")
                mark_launched(spec)
                job_id = self._submit(spec, confirm, progress)
                failpoint("launched")
            else:
                confirm()
        self._submitting.pop(spec.name, None)
        self._follower.follow(spec.name, job_id)
        job = self._await_start(spec, progress)
        handle = spec.base_handle() | image_digest(spec.control)
        handle |= {"ports": [(port.external, port.internal) for port in spec.ports]}
        names = nodes.list_names(self._commands, spec, job.nodes)
        allocation = {"zone": job.partition, "name": job_id, "type": "slurm", "url": None, "addresses": names}
        return handle | {"slurm": allocation, "stop_grace": spec.job_spec.stop_grace}

    def has_containers(self) -> bool:
        return self._containers.find_program() is not None

    def build(self, spec: LaunchSpec, progress: Progress) -> str:
        del spec, progress
        raise LaunchError("image_build", "jobs on Slurm clusters cannot build images")

    def data_folder(self) -> Path | None:
        return self._containers.images.folder

    def prune_images(self, *, everything: bool, dry_run: bool = False) -> list[UnusedImage]:
        return self._containers.images.prune(everything=everything, dry_run=dry_run)

    def _find(self, spec: LaunchSpec, progress: Progress) -> str | None:
        """Return the job's id in Slurm if it was submitted before, as far as Slurm knows."""
        if not may_have_launched(spec.control):
            return None
        if (job_id := read_control(spec.control, _ID_FILE)) is not None:
            return job_id
        while True:
            try:
                job = choose([job for job in self._follower.list_jobs() if job.name == spec.name])
            except SlurmError as error:
                progress(WAITING_PHASE, f"Slurm does not answer: {error}")
                self._pause(spec, _RETRY_SECONDS)
            else:
                return job.id if job is not None else None

    def _submit(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> str:
        options = self._options(spec)
        while True:
            try:
                job_id = self._commands.run("sbatch", *options).strip().partition(";")[0]
            except SlurmError as error:
                if not (error.unanswered or submission.is_full(error)):
                    raise LaunchError("slurm_refused", str(error)) from error
                progress(WAITING_PHASE, submission.describe_delay(error))
                self._pause(spec, _RETRY_SECONDS)
                if error.unanswered and (submitted := self._find(spec, progress)) is not None:
                    return submitted
                confirm()
            else:
                write_control_file(spec.control, _ID_FILE, job_id)
                return job_id

    def _options(self, spec: LaunchSpec) -> list[str]:
        try:
            request = Catalogue.offered(self._settings).get(spec.machine_type).slurm
        except MachineTypeUnknown as error:  # the service has another list
            why = f"this login node's list of machine types has no {spec.machine_type!r}; copy the service's file"
            raise LaunchError("launch_failed", why) from error
        return submission.options(spec, request, self._settings.slurm.options, self._commands.path("srun"))

    def _pause(self, spec: LaunchSpec, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            spec.check()
            time.sleep(min(_CHECK_SECONDS, seconds))

    def _await_start(self, spec: LaunchSpec, progress: Progress) -> SlurmJob:
        """Wait until the job no longer does, in Slurm's queue."""
        reported = None
        while True:
            job = self._follower.job(spec.name)
            if job is not None and (job.state not in PENDING or self._began(spec.control)):
                return job
            if self._follower.is_missing(spec.name):
                raise LaunchError("slurm_cancelled", "Slurm no longer knows the job, which never began")
            if self._follower.problem is not None:
                sentence = f"Slurm does not answer: {self._follower.problem}"
            else:
                sentence = "Handed over to Slurm." if job is None else waiting_sentence(job)
            if sentence != reported:
                progress(WAITING_PHASE, sentence)
                reported = sentence
            spec.check()
            self._follower.wait_for_answer(_CHECK_SECONDS)

    def _began(self, control: Path) -> bool:
        return read_control(control, "started") is not None

    def ended(self, handle: Handle) -> Exit | None:
        return self._nodes.follow(handle, self._find_end(handle))

    def node_exits(self, handle: Handle) -> dict[str, int | None]:
        return self._nodes.exits(handle)

    def _find_end(self, handle: Handle) -> Exit | None:
        name, control = handle["name"], Path(handle["control"])
        code = nodes.read_whole_code(control)
        if code == 0 and read_control(control, STOPPING_FILE) is None:
            return Exit(0)
        self._follower.follow(name, read_control(control, _ID_FILE))
        job = self._follower.job(name)
        if job is not None and job.state not in PENDING | RUNNING:
            return self._ends.of(job, control, code)
        if job is not None and job.state in PENDING and self._began(control):
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
        job_id = read_control(Path(handle["control"]), _ID_FILE)
        with suppress(SlurmError):  # it has ended, or is signalled again
            if job_id is not None:
                self._commands.run("scancel", "--batch", f"--signal={name}", job_id)

    def _cancel(self, handle: Handle) -> None:
        with suppress(SlurmError):
            self._commands.run("scancel", "--signal=KILL", f"--name={handle['name']}", f"--user={self._commands.user}")

    def destroy(self, handle: Handle) -> None:
        name, control = handle["name"], Path(handle["control"])
        self._ports.close(name)
        self._follower.follow(name, read_control(control, _ID_FILE))
        has_ended = nodes.read_whole_code(control) is not None
        if has_ended:
            self._await_gone(name, _END_SECONDS)
        if not self._is_gone(name):
            self._cancel(handle)
            self._await_gone(name, _END_SECONDS if has_ended else _REMOVE_SECONDS)
        # Outputs of a command that has ended are not kept waiting by a daemon that is away; a sweep removes the rest.
        if not self._is_gone(name) and not has_ended:
            job = self._follower.job(name)
            why = self._follower.problem or f"Slurm job {job.id if job else '?'} is {job.state if job else 'unknown'}"
            raise LaunchError("launch_failed", why)
        self._follower.forget(name)
        self._ends.forget(name)
        self._nodes.forget(name)

    def _await_gone(self, name: str, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not self._is_gone(name) and time.monotonic() < until:
            self._follower.wait_for_answer(until - time.monotonic())

    def _is_gone(self, name: str) -> bool:
        job = self._follower.job(name)
        return self._follower.is_missing(name) if job is None else job.state not in PENDING | RUNNING

    def owned(self) -> list[Handle]:
        try:
            listed = self._follower.list_jobs()
        except SlurmError as error:
            raise LaunchError("launch_failed", str(error)) from error
        living = [job for job in listed if job.state in PENDING | RUNNING]
        names = {match[0]: match for job in living if (match := _NAME.match(job.name)) and self._is_own(job)}
        return [scratch_handle(self._attempts, match[1], int(match[2])) for match in names.values()]

    def _is_own(self, job: SlurmJob) -> bool:
        """Return whether a job is this service's: the same user may have several."""
        folder = self._attempts / job.name
        return job.comment == submission.comment(folder / "control") or folder.is_dir()

    def run_in_job(self, handle: Handle, request: ExecRequest) -> ProcessStream:
        return job_exec.run_in_job(self._commands, handle, self._running_id(handle), request)

    def connect_to_job(self, handle: Handle, port: int, session_id: str) -> SocketStream:
        del session_id  # the connection needs no name
        return SocketStream(self._connect(handle, port))

    def _connect(self, handle: Handle, port: int) -> socket.socket:
        return job_exec.connect_to_job(self._commands, handle, self._running_id(handle), port)

    def _running_id(self, handle: Handle) -> str:
        job = self._follower.job(handle["name"])
        if job is None or self._is_gone(handle["name"]) or not self._began(Path(handle["control"])):
            raise ExecRefused("The job has no process to enter: it is starting or has just ended.")
        return job.id

    def sample(self, handle: Handle) -> dict[str, float]:
        try:
            values = json.loads(read_control(Path(handle["control"]), USAGE_FILE, _USAGE_BYTES) or "{}")
            return {str(name): float(value) for name, value in values.items()}
        except (ValueError, TypeError, AttributeError):  # the job can write there
            return {}
