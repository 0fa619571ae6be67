"""What Celery can call. Every task is short; none waits for a job."""

from celery import Celery

from core.bell import Bell
from core.queue import RING


def register(app: Celery, bell: Bell) -> None:
    """Give the app its tasks on this host."""
    app.task(bell.ring, name=RING)
