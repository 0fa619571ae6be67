"""The spans of one attempt. Any worker can add to them: their ids are derived from the job's row.

An attempt may run for hours and outlive its workers. Therefore the spans of the attempt and of the run are emitted when
the attempt is closed, by the worker that closes it, with the times in the row. Only short steps are spans of the worker
that executes them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cached_property

from core.db.models.jobs import Job
from core.errors import LeaseLost
from core.jobs.reasons import REASONS
from core.jobs.states import JobState
from core.monitoring import tracing
from core.monitoring.tracing import TRACE_PARENT, SpanIds
from worker.attempt.control import Detached

_OK_STATES = frozenset({JobState.SUCCEEDED, JobState.CANCELLED})


class AttemptSpans:
    """Emits the spans of a job's current attempt. `job`: the job; its trace parent is the submission's."""

    def __init__(self, job: Job) -> None:
        self._trace_parent, self._names = job.trace_parent or "", (job.id, str(job.attempt))
        self._attributes: dict[str, str | int] = {
            "gradient.job.id": job.id,
            "gradient.attempt": job.attempt,
            "gradient.machine_type": job.machine_type,
        }

    @cached_property
    def _whole(self) -> SpanIds:
        return SpanIds(tracing.extract_context({TRACE_PARENT: self._trace_parent}), *self._names)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Open a span for a step of the attempt: prepare, launch, tear down, collect, finish."""
        if not tracing.is_enabled():
            yield
            return
        released: BaseException | None = None
        with tracing.span(name, self._whole.child_context, self._attributes) as entered:
            try:
                yield
            except (Detached, LeaseLost) as error:  # not a failure: another worker repeats the step
                entered.set_attribute("gradient.released", True)  # noqa: FBT003 - an attribute's value
                released = error
        if released is not None:
            raise released

    def emit_run(self, job: Job, reason: str) -> None:
        if not tracing.is_enabled():
            return
        attributes = self._attributes | {"gradient.reason": reason, "gradient.worker": job.worker or ""}
        error = None if REASONS[reason].final in _OK_STATES else reason
        ended = job.ended_at or datetime.now(UTC)
        if job.started_at is not None:
            run = SpanIds(self._whole.child_context, *self._names, "run")
            run.emit("run", job.started_at, ended, attributes, error)
        if job.claimed_at is not None:
            # The database's clock may be ahead of this host's.
            self._whole.emit("attempt", job.claimed_at, max(ended, datetime.now(UTC)), attributes, error)
