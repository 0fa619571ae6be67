"""The repair of what bills: TPUs that no job owns are deleted. One worker at a time does it, one that can."""

import logging
from functools import partial
from typing import cast

from core.errors import StoreUnavailable
from core.jobs import queries, repairs
from core.jobs.models import Job
from core.jobs.states import OWNED, TERMINAL
from worker.backends.base import CloudBackend
from worker.host import Host

logger = logging.getLogger(__name__)

_TURN = "clouds"
_TURN_SWEEPS = 3


class CloudSweep:
    """The repairs of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host

    def run(self) -> dict[str, int]:
        """Repair what needs it, if this host can and it is its turn.

        Returns:
            How many of each were repaired.
        """
        # A turn of its own: whose turn it is at the other repairs may have no way to the cloud.
        if self._host.settings.tpu.backend not in self._host.offered or not self._my_turn():
            return {}
        backend = cast("CloudBackend", self._host.backend(str(self._host.settings.tpu.backend)))
        if backend.unready() is not None:
            return {}
        try:
            return {"tpus": backend.remove_strays(self._owned, self._over)}
        except StoreUnavailable:
            raise
        except Exception:  # one that cannot be listed must not keep the other repairs from being made
            logger.exception("tpus_not_swept")
            return {}

    def _my_turn(self) -> bool:
        seconds = _TURN_SWEEPS * self._host.settings.worker.sweep_seconds
        return self._host.write(partial(repairs.take_turn, name=_TURN, holder=self._host.name, seconds=seconds))

    def _owned(self, job_id: str, attempt: int) -> bool:
        job = self._row(job_id)
        return job is not None and job.attempt == attempt and job.state in OWNED

    def _over(self, job_id: str) -> bool:
        job = self._row(job_id)
        return job is not None and job.state in TERMINAL

    def _row(self, job_id: str) -> Job | None:
        with self._host.database.read() as session:
            return queries.row(session, job_id)
