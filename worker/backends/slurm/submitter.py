"""Hands attempts over to Slurm by sbatch, each once: single ones at once, and members of an array together."""

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

from core.catalogue.machine_types import Catalogue
from core.errors import MachineTypeUnknown
from core.jobs.states import WAITING_PHASE
from core.settings import Settings
from core.system.failpoints import failpoint
from worker.backends.base import LaunchError, LaunchSpec, Progress, WaitsElsewhere, mark_launched
from worker.backends.slurm import submission
from worker.backends.slurm.commands import Commands, SlurmError
from worker.backends.slurm.ends import modified
from worker.backends.slurm.follower import Follower, choose
from worker.runner.control_files import may_have_launched, read_control, write_control_file

ID_FILE = "slurm_job"  # in the control folder
_CHECK_SECONDS = 1.0  # between looks at requests to stop a job that waits
_RETRY_SECONDS = 15.0


@dataclass(slots=True, eq=False)
class _Attempt:
    spec: LaunchSpec
    confirm: Callable[[], None]
    progress: Progress
    error: Exception | None = None  # why it is not submitted


class Submitter:
    def __init__(self, settings: Settings, commands: Commands, follower: Follower) -> None:
        self._settings, self._commands, self._follower = settings, commands, follower
        self._catalogue, self._catalogue_of = Catalogue.offered(settings), _changed_at(settings)
        self._members: dict[str, _Attempt] = {}  # of arrays, until they are submitted

    def find(self, spec: LaunchSpec, progress: Progress) -> str | None:
        """Return the job's id in Slurm if it was submitted before, as far as Slurm knows."""
        if not may_have_launched(spec.control):
            return None
        if (job_id := read_control(spec.control, ID_FILE)) is not None:
            return job_id
        key = submission.key_of(spec.control)
        while True:
            try:
                job = choose([job for job in self._follower.list_jobs() if job.key == key])
            except SlurmError as error:
                waiting = _Attempt(spec, spec.check, progress)
                self._pause([waiting], f"Slurm does not answer: {error}")
                if waiting.error is not None:
                    raise waiting.error from error
            else:
                return job.id if job is not None else None

    def raise_if_prepared(self, spec: LaunchSpec) -> None:
        """Raise `WaitsElsewhere` if an attempt is to be submitted with others; what hinders that is raised, too."""
        member = self._members.get(spec.name)
        if member is None:
            return
        if member.error is None:
            self._keep([member], lambda attempt: attempt.spec.check())
        if member.error is None:
            raise WaitsElsewhere
        self._members.pop(spec.name, None)
        raise member.error

    def submit(self, spec: LaunchSpec, confirm: Callable[[], None], progress: Progress) -> str:
        """Submit an attempt; raises `WaitsElsewhere` if it is submitted with others."""
        attempt = _Attempt(spec, confirm, progress)
        if spec.together and not may_have_launched(spec.control):
            self._members[spec.name] = attempt
            raise WaitsElsewhere
        submission.unlink_member(spec.control)
        job_id = self._submit([attempt], is_array=False)
        if attempt.error is not None:
            raise attempt.error
        assert job_id is not None  # noqa: S101 - there is one without an error
        return job_id

    def submit_members(self, names: Collection[str], limit: int | None) -> None:
        """Submit the prepared ones of these attempts, of which `limit` may run at once."""
        alike: defaultdict[object, list[_Attempt]] = defaultdict(list)
        for member in filter(None, map(self._members.get, names)):
            spec, job = member.spec, member.spec.job_spec
            signals = job.stop_grace, spec.stop_signal, job.warning(), spec.warning_signal
            alike[spec.machine_type, job.cpus, job.memory_mb, job.time_limit, signals].append(member)
        for members in alike.values():
            self._submit(members, is_array=True, limit=limit)

    def _submit(
        self, attempts: Sequence[_Attempt], *, is_array: bool, limit: int | None = None, after: str | None = None
    ) -> str | None:
        """Call sbatch until Slurm has taken these attempts or refused them; return the job's id, or that of the array.

        `after`: the array of the members before these, if fewer than all may run at once.
        """
        failpoint("created")
        left = self._keep(attempts, lambda attempt: attempt.confirm())
        failpoint("confirmed")
        tasks, job_id, name = list(left), None, ""
        try:
            if is_array and left:
                name = submission.link_members([attempt.spec for attempt in left])
        except OSError as error:
            left = self._refuse(left, LaunchError.of(error))
        left = self._keep(left, lambda attempt: mark_launched(attempt.spec))
        while left and job_id is None:
            try:
                options = self._options(left[0].spec, name, [tasks.index(attempt) for attempt in left], limit, after)
                job_id = self._commands.run("sbatch", *options).strip().partition(";")[0]
            except LaunchError as error:
                left = self._refuse(left, error)
            except SlurmError as error:
                if len(left) > 1 and submission.takes_fewer(error):
                    return self._submit_halves(left, limit, after)
                refused = not (error.unanswered or submission.is_full(error))
                why = LaunchError("slurm_refused", str(error))
                left = self._refuse(left, why) if refused else self._pause(left, submission.describe_delay(error))
                if error.unanswered and left:
                    job_id = (self.find(left[0].spec, left[0].progress) or "").partition("_")[0] or None
                left = self._keep(left, lambda attempt: attempt.confirm())
        failpoint("launched")
        for attempt in left:
            self._record(attempt, f"{job_id}_{tasks.index(attempt)}" if is_array else job_id or "", waits=is_array)
        return job_id

    def _submit_halves(self, attempts: Sequence[_Attempt], limit: int | None, after: str | None) -> str | None:
        half = len(attempts) // 2
        first = self._submit(attempts[:half], is_array=True, limit=limit, after=after)
        after = first or after if limit is not None else None
        return self._submit(attempts[half:], is_array=True, limit=limit, after=after)

    def _record(self, attempt: _Attempt, job_id: str, *, waits: bool) -> None:
        spec = attempt.spec
        write_control_file(spec.control, ID_FILE, job_id)
        self._follower.follow(spec.name, submission.key_of(spec.control), job_id)
        if waits:
            report = partial(attempt.progress, WAITING_PHASE)
            self._follower.await_start(spec.name, spec.control, report, spec.resume)
        self._members.pop(spec.name, None)

    def _options(
        self, spec: LaunchSpec, array: str, tasks: Sequence[int], limit: int | None, after: str | None
    ) -> list[str]:
        try:
            if (changed_at := _changed_at(self._settings)) != self._catalogue_of:
                self._catalogue, self._catalogue_of = Catalogue.offered(self._settings), changed_at
            request = self._catalogue.get(spec.machine_type).slurm
        except MachineTypeUnknown as error:  # the service has another list
            why = f"this login node's list of machine types has no {spec.machine_type!r}; copy the service's file"
            raise LaunchError("launch_failed", why) from error
        further, srun = self._settings.slurm.options, self._commands.path("srun")
        if not array:
            return submission.options(spec, request, further, srun)
        all_follow = tasks[-1] - tasks[0] == len(tasks) - 1
        numbers = f"{tasks[0]}-{tasks[-1]}" if all_follow else ",".join(map(str, tasks))
        array_options = [f"--array={numbers}{'' if limit is None else f'%{limit}'}"]
        if after is not None:
            array_options.append(f"--dependency=afterany:{after}")
        return array_options + submission.options(spec, request, further, srun, submission.folder_of(spec, array))

    def _keep(self, attempts: Sequence[_Attempt], step: Callable[[_Attempt], None]) -> list[_Attempt]:
        """Return those with which a step succeeds."""
        kept = []
        for attempt in attempts:
            try:
                step(attempt)
            except Exception as error:  # noqa: BLE001 - raised again by the attempt's own thread
                self._refuse([attempt], error)
            else:
                kept.append(attempt)
        return kept

    def _refuse(self, attempts: Sequence[_Attempt], error: Exception) -> list[_Attempt]:
        for attempt in attempts:
            attempt.error = error
            if attempt.spec.name in self._members:
                attempt.spec.resume()
        return []

    def _pause(self, attempts: Sequence[_Attempt], why: str) -> list[_Attempt]:
        """Wait until a command is tried again."""
        left = self._keep(attempts, lambda attempt: attempt.progress(WAITING_PHASE, why))
        until = time.monotonic() + _RETRY_SECONDS
        while left and time.monotonic() < until:
            left = self._keep(left, lambda attempt: attempt.spec.check())
            time.sleep(_CHECK_SECONDS)
        return left


def _changed_at(settings: Settings) -> float | None:
    """Return the time of the file of machine types, which may be changed while this worker runs."""
    return modified(settings.machines_file) if settings.machines_file is not None else None
