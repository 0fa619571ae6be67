"""Deletes TPUs that no job owns. One worker at a time does it, among those that can reach the cloud."""

import logging
from typing import cast

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs import queries
from core.jobs.states import OWNED, TERMINAL
from worker.backends.base import CloudBackend
from worker.context import WorkerContext

logger = logging.getLogger(__name__)

_LEASE_NAME = "clouds"


class CloudSweep:
    """Deletes unowned TPUs from one host."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context

    def run(self) -> dict[str, int]:
        """Delete TPUs that no job owns, if this host has a TPU backend and this worker holds the lease.

        Returns number of repairs by kind.
        """
        # A separate lease: the worker that does the other repairs may not reach the cloud.
        clouds = [name for name in self._context.enabled_backends if capabilities_of(name).billed]
        if not clouds or not self._context.leads(_LEASE_NAME):
            return {}
        backends = [cast("CloudBackend", self._context.backend(name)) for name in clouds]
        try:
            return {"tpus": sum(backend.remove_orphans(self._is_owned, self._is_finished) for backend in backends)}
        except StoreUnavailable:
            raise
        except Exception:  # a failure here must not prevent the other repairs
            logger.exception("tpus_not_swept")
            return {}

    def _is_owned(self, job_id: str, attempt: int) -> bool:
        job = self._read_job(job_id)
        return job is not None and job.attempt == attempt and job.state in OWNED

    def _is_finished(self, job_id: str) -> bool:
        """Return whether nothing of a job in a bucket is needed any more: what could not be fetched stays there."""
        job = self._read_job(job_id)
        if job is None or job.state not in TERMINAL:
            return False
        lost = job.handle is not None  # a worker that closes a job removes it
        return not lost and job.artifacts_state not in {"partial", "failed"}

    def _read_job(self, job_id: str) -> Job | None:
        with self._context.database.read() as session:
            return queries.get_row(session, job_id)
