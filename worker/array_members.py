"""Short members of an array, one after the other in one slot.

They share what does not differ: the sandbox's mounts and network, the prepared Python, and a transaction, which records
all of a member that has ended and claims the next job. Each is an ordinary attempt otherwise: another worker can adopt
it at any point, and one that does not end at once goes on as any other job.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Job
from core.db.prepared import Prepared
from core.jobs import lifecycle
from core.jobs.guarded_updates import with_values
from core.jobs.states import JobState
from core.system.filesystem import remove_tree
from worker.attempt.control import AttemptControl
from worker.attempt.monitor import with_exit_reason
from worker.attempt.pipeline import AttemptRun, CollectedOutputs
from worker.backends.base import Exit, Handle, JobPython, LaunchSpec, may_have_launched
from worker.backends.process.shared_sandbox import SharedSandbox
from worker.context import WorkerContext
from worker.environments.cache import LINK, is_of_attempt
from worker.environments.job_layer import FOLDER, find_layer, layer_state

SHORT_SECONDS = 1.0  # longest time of a member, start and end included, after which further ones are taken for short
_AT_ONCE_SECONDS = 0.3  # a member that runs longer is recorded as running
_CLOCK = Prepared(select(now()))
_READY = "ready-python"  # name of a virtual environment that the next member gets
_NUMBERS = count()


def slots_folder(context: WorkerContext) -> Path:
    return context.settings.root / "slots" / context.worker_name


class ArraySlot:
    """The things that the members of one array share that run in one slot; for one thread."""

    def __init__(self, context: WorkerContext, array_id: str | None) -> None:
        self.array_id = array_id
        self.folder = slots_folder(context) / str(next(_NUMBERS))
        self.sandbox = SharedSandbox(self.folder)
        self.python: Path | None = None
        """The environment below the virtual environment of a member that ended, which is in the folder; None: none."""

    def close(self) -> None:
        self.sandbox.close()
        remove_tree(self.folder)


class _Ended(NamedTuple):
    """A member whose command has ended, of which nothing is recorded."""

    job: Job
    handle: Handle
    end: Exit
    at: float  # of `time.monotonic()`


class MemberRun(AttemptRun):
    """Runs an attempt that is likely to be short.

    Args:
        claim: Claims the next job for this slot, in the transaction that closes this one; None: there is none.
    """

    def __init__(
        self,
        context: WorkerContext,
        job: Job,
        control: AttemptControl,
        slot: ArraySlot,
        claim: Callable[[Session], Job | None],
    ) -> None:
        super().__init__(context, job, control)
        self._slot = slot
        self._claim = claim
        self._made_at = time.monotonic()
        self._ended: _Ended | None = None
        self._closing = False
        self._layer: object = None
        self.next: Job | None = None  # what was claimed

    def _confirm(self) -> None:
        if time.monotonic() - self._made_at > self._context.settings.worker.heartbeat_seconds:
            super()._confirm()
        else:
            self._check()  # it was claimed just now

    def _prepare_python(self) -> JobPython | None:
        shared, scratch = self._slot.python, self._scratch.root
        self._slot.python = None
        if shared is None or may_have_launched(self._scratch.control) or not shared.is_dir():
            made = super()._prepare_python()
            passed_on = made is not None and not is_of_attempt(made.shared)
        else:
            (scratch / LINK).symlink_to(shared)
            (self._slot.folder / _READY).rename(scratch / FOLDER)
            made, passed_on = find_layer(scratch), True
        self._layer = layer_state(scratch) if passed_on else None
        return made

    def _launch_spec(self) -> LaunchSpec:
        return replace(super()._launch_spec(), shared=self._slot.sandbox)

    def _record_launch(self, handle: Handle) -> None:
        self._requests.start_unrecorded = True
        self._backend.await_end(handle, _AT_ONCE_SECONDS)
        requested = self._requests.stop_requested or self._requests.contact_lost or self._requests.detached
        end = None if requested else self._backend.poll(handle)
        if end is None or end.memory_bytes is not None:
            super()._record_launch(handle)
            return
        self._ended = _Ended(self.job, handle, with_exit_reason(end, self._scratch.control), time.monotonic())
        known = {"exit_code": end.code, "reason": self._ended.end.reason or "process_lost"}
        self.job = with_values(self.job, state=JobState.FINISHING, handle=handle, **known)

    def _tear_down(self) -> None:
        super()._tear_down()
        own = self._scratch.root / FOLDER
        with suppress(OSError):
            if self._layer is not None and layer_state(self._scratch.root) == self._layer:
                self._slot.folder.mkdir(parents=True, exist_ok=True)
                own.rename(self._slot.folder / _READY)
                self._slot.python = (self._scratch.root / LINK).readlink()

    def _finish(self, outputs: CollectedOutputs) -> None:
        self._closing = True
        super()._finish(outputs)

    def _transition(self, action: Callable[[Session], Job]) -> None:
        def act(session: Session) -> Job:
            self.next = None
            if self._ended is not None:
                _record(session, self._ended)
            moved = action(session)
            if self._closing:
                self.next = self._claim(session)
            return moved

        super()._transition(act)
        self._ended = None
        self._requests.start_unrecorded = False


def _record(session: Session, ended: _Ended) -> None:
    """Record that a command has run and ended, at the times at which it did."""
    ((clock,),) = _CLOCK.rows(session, {})
    began, at = (clock - timedelta(seconds=time.monotonic() - one) for one in (ended.handle["began"], ended.at))
    running = lifecycle.mark_running(session, ended.job, ended.handle, started_at=began)
    reason, end = ended.end.reason or "process_lost", ended.end
    lifecycle.mark_finishing(session, running, reason, detail=end.detail, exit_code=end.code, ended_at=at)
