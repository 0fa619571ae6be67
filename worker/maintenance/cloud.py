"""Deletes TPUs that no job owns. One worker at a time does it, among those that can reach the cloud."""

import logging
from functools import partial
from typing import cast

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs import maintenance, queries
from core.jobs.states import OWNED, TERMINAL
from worker.backends.base import CloudBackend
from worker.context import Host

logger = logging.getLogger(__name__)

_TURN = "clouds"
_TURN_SWEEPS = 3


class CloudSweep:
    """Deletes unowned TPUs from one host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def run(self) -> dict[str, int]:
        """Delete TPUs that no job owns, if this host has a ready TPU backend and it is its turn.

        Returns:
            Number of repairs by kind.
        """
        # A separate turn: the worker whose turn the other repairs are may not reach the cloud.
        clouds = [name for name in self._host.offered if capabilities_of(name).billed]
        if not clouds or not self._my_turn():
            return {}
        backends = (cast("CloudBackend", self._host.backend(name)) for name in clouds)
        ready = [backend for backend in backends if backend.unready() is None]
        try:
            return {"tpus": sum(backend.remove_strays(self._owned, self._over) for backend in ready)}
        except StoreUnavailable:
            raise
        except Exception:  # a failure here must not prevent the other repairs
            logger.exception("tpus_not_swept")
            return {}

    def _my_turn(self) -> bool:
        seconds = _TURN_SWEEPS * self._host.settings.worker.sweep_seconds
        return self._host.write(partial(maintenance.take_turn, name=_TURN, holder=self._host.name, seconds=seconds))

    def _owned(self, job_id: str, attempt: int) -> bool:
        job = self._row(job_id)
        return job is not None and job.attempt == attempt and job.state in OWNED

    def _over(self, job_id: str) -> bool:
        job = self._row(job_id)
        return job is not None and job.state in TERMINAL

    def _row(self, job_id: str) -> Job | None:
        with self._host.database.read() as session:
            return queries.row(session, job_id)
