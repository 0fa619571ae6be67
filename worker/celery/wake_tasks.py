"""The Celery tasks. Each is short; none waits for a job or queries the database.

Messages may be lost, duplicated, late, or forged by anyone who can reach the broker: all they can do is make this host
look for work once more.
"""

import logging
from collections.abc import Callable

from celery import Celery
from celery.exceptions import Reject

from core.monitoring.logging import bind
from core.notify.celery_app import PING_TASK, WAKE_TASK
from core.notify.wakeup_file import WakeupFile

logger = logging.getLogger(__name__)

_MAX_ID_LENGTH = 64


def register(app: Celery, notifier: WakeupFile, ping_received: Callable[[], None] = lambda: None) -> None:
    """Register the tasks of this host with the app. `ping_received`: called for each ping."""

    def wake(job_id: object, request_id: object = None) -> None:
        if not _is_id(job_id) or not (request_id is None or _is_id(request_id)):
            raise Reject("a wake message carries a job's id and a request's, or null", requeue=False)
        bind(job_id=job_id, request_id=request_id)
        logger.debug("wake_received")
        notifier.notify()

    def ping() -> None:
        ping_received()

    app.task(wake, name=WAKE_TASK, shared=False)  # not with every app of this process
    app.task(ping, name=PING_TASK, shared=False)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_ID_LENGTH
