"""What Celery can call. Every task is short; none waits for a job or asks the database.

Messages may be lost, doubled, late or made by anybody who reaches the broker: all they can do is to have this host
look, once more, for what there is to do.
"""

import logging
from collections.abc import Callable

from celery import Celery
from celery.exceptions import Reject

from core.bell import Bell
from core.logging import bind
from core.queue import PING, RING

logger = logging.getLogger(__name__)

_LONGEST_ID = 64


def register(app: Celery, bell: Bell, heard: Callable[[], None] = lambda: None) -> None:
    """Give the app its tasks on this host.

    Args:
        app: Theirs from now on.
        bell: What a ring rings.
        heard: Called for each ping.
    """

    def ring(job_id: object, request_id: object = None) -> None:
        if not _is_id(job_id) or not (request_id is None or _is_id(request_id)):
            raise Reject("a ring carries a job's id and a request's, or null", requeue=False)
        bind(job_id=job_id, request_id=request_id)
        logger.debug("rang")
        bell.ring()

    def ping() -> None:
        heard()

    app.task(ring, name=RING, shared=False)  # not with every app of this process
    app.task(ping, name=PING, shared=False)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST_ID
