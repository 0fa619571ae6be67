"""Short members of an array, one after the other in one slot.

They share what does not differ: the sandbox's mounts and network, the prepared Python, and a transaction, which records
all of a member that has ended and claims the next job. Each is an ordinary attempt otherwise: another worker can adopt
it at any point, and one that does not end at once goes on as any other job.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs.states import JobState
from core.system.untrusted_folders import folder_state, move, remove_tree
from worker.attempt.control import AttemptControl
from worker.attempt.outputs.collection import CollectedOutputs
from worker.attempt.pipeline import AttemptRun
from worker.backends.base import Handle, JobPython, LaunchSpec
from worker.backends.process.job_sandbox import PRIVATE_FOLDERS
from worker.backends.process.shared_sandbox import MemberSpec, SharedSandbox
from worker.context import WorkerContext
from worker.environments.cache import LINK, is_of_attempt
from worker.environments.prepare import FOLDER, find_layer
from worker.runner.control_files import may_have_launched

SHORT_SECONDS = 1.0  # longest time of a member, start and end included, after which further ones are taken for short
_AT_ONCE_SECONDS = 0.3  # a member that runs longer is recorded as running
_REMEMBERED_ARRAYS = 1000
_READY = "ready"  # name of the folders that the next member gets
_BESIDE = (("workspace", "workspace.json"), (FOLDER, LINK))
"""Files of the scratch folder that describe one of the folders."""
_NUMBERS = count()
_State = dict[str, tuple[int, int]]  # see `folder_state`


def slots_folder(context: WorkerContext) -> Path:
    return Path(context.settings.root, "slots", context.worker_name)


class ArraySlot:
    """The things that the members of one array share that run in one slot; for one thread."""

    def __init__(self, context: WorkerContext, array_id: str | None) -> None:
        self.array_id = array_id
        self.folder = slots_folder(context) / str(next(_NUMBERS))
        self.sandbox = SharedSandbox(self.folder)
        self.left: dict[str, _State] = {}
        """The folders of a member that has ended which are as it got them: by name, in `_READY`."""

    def close(self) -> None:
        self.sandbox.close()
        remove_tree(self.folder)


class ShortArrays:
    """Arrays whose last member that ended was short."""

    def __init__(self) -> None:
        self._ids: dict[str, None] = {}  # the latest last

    def have(self, job: Job) -> bool:
        """Return whether a job is a member of an array that is run in a slot with others."""
        if (
            job.array_id is None
            or {job.nodes, job.spec.keep_on_fail} != {None}
            or job.backend != "process"
            or job.state is not JobState.STARTING
        ):
            return False
        wanted = job.spec.array_reuse
        return wanted == "on" or (wanted is None and job.array_id in self._ids)

    def remember(self, job: Job, seconds: float) -> None:
        """Remember whether a job that has ended, after these seconds, was a short member of an array."""
        if job.array_id is not None:
            self._ids.pop(job.array_id, None)
            if seconds <= SHORT_SECONDS:
                self._ids[job.array_id] = None
            for oldest in list(self._ids)[:-_REMEMBERED_ARRAYS]:
                self._ids.pop(oldest, None)


class MemberRun(AttemptRun):
    """Runs an attempt that is likely to be short.

    Args:
        claim: Claims the next job for this slot, in the transaction that closes this one, or after it if the worker
            claims through the service; None: there is none.
    """

    def __init__(
        self,
        context: WorkerContext,
        job: Job,
        control: AttemptControl,
        slot: ArraySlot,
        claim: Callable[[Session | None], Job | None],
    ) -> None:
        super().__init__(context, job, control)
        self._slot = slot
        self._claim = claim
        self._closing = False
        self._same: dict[str, _State] = {}  # its folders that the next member may get, as they were before its command
        self._passes_python = False
        self.next: Job | None = None  # what was claimed

    def _confirm(self) -> None:
        if time.monotonic() - self._held_at[0] > self._context.settings.worker.heartbeat_seconds:
            super()._confirm()
        else:
            self._check()  # it was claimed just now

    def prepare(self) -> None:
        left, self._slot.left = self._slot.left, {}
        if left and self.job.attempt == 1 and not self._scratch.root.exists():
            move(self._slot.folder / _READY, self._scratch.root)
            self._same = left
        super().prepare()

    def _prepare_python(self) -> JobPython | None:
        made = find_layer(self._scratch.root) if FOLDER in self._same else None
        if made is None or not made.shared.is_dir() or may_have_launched(self._scratch.control):
            self._same.pop(FOLDER, None)
            made = super()._prepare_python()
        self._passes_python = made is not None and not is_of_attempt(made.shared)
        return made

    def _launch_spec(self) -> LaunchSpec:
        spec = replace(super()._launch_spec(), before_launch=self._remember_folders)
        return MemberSpec.of(spec, self._slot.sandbox)

    def _remember_folders(self) -> None:
        """Remember the folders that the next member may get."""
        spec, root = self.job.spec, self._scratch.root
        if self.job.attempt > 1:  # it has artifacts of the one before
            return
        names = ["artifacts", *PRIVATE_FOLDERS, *([FOLDER] if self._passes_python else [])]
        if spec.workspace is None or spec.workspace_sha256 is not None:  # else it is what git has just then
            names.append("workspace")
        states = {name: self._same.get(name) or folder_state(root / name) for name in names}
        self._same = {name: state for name, state in states.items() if state}

    def _may_have_ended(self, handle: Handle) -> bool:
        self._backend.await_end(handle, _AT_ONCE_SECONDS)
        return True

    def _is_workspace_unchanged(self) -> bool:
        return self._is_same("workspace")

    def _is_same(self, name: str) -> bool:
        return name in self._same and folder_state(self._scratch.root / name) == self._same[name]

    def _leave_folders(self) -> None:
        """Leave the folders that this member has not changed to the next one, and remove the rest."""
        root, same = self._scratch.root, {name: state for name, state in self._same.items() if self._is_same(name)}
        with suppress(OSError):
            if same:
                self._scratch.remove_all_but({*same, *(also for name, also in _BESIDE if name in same)})
                self._slot.folder.mkdir(parents=True, exist_ok=True)
                move(root, self._slot.folder / _READY)
                self._slot.left = same

    def _finish(self, outputs: CollectedOutputs | None) -> None:
        self._closing = True
        super()._finish(outputs)
        self._leave_folders()

    def _transition(self, action: Callable[[Session], Job]) -> None:
        def act(session: Session) -> Job:
            self.next = None
            moved = action(session)
            if self._closing and self._context.link is None:
                self.next = self._claim(session)
            return moved

        super()._transition(act)
        if self._closing and self._context.link is not None:
            self.next = self._claim(None)
