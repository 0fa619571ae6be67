"""The Celery app and its queues: the doorbell between hosts. The database is the truth; a message says "look".

Nothing here is imported where no broker is set.
"""

from celery import Celery
from kombu.exceptions import OperationalError

RING = "gradient.ring"
QUEUE = "gradient.bell"


def make_app(broker_url: str) -> Celery:
    """The Celery app on this broker, with settings under which losing or doubling a message does no harm."""
    app = Celery("gradient", broker=broker_url)
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        # No result backend: the job's row is the only record of it.
        task_ignore_result=True,
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=False,
        worker_prefetch_multiplier=1,
        broker_connection_max_retries=None,
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
    )
    if broker_url.startswith("redis"):
        app.conf.broker_transport_options = {
            # Far above what any task takes: never delivered again while it runs.
            "visibility_timeout": 600,
            "socket_timeout": 10,
            "socket_connect_timeout": 3,
            "socket_keepalive": True,
            "health_check_interval": 10,
            "global_keyprefix": "gradient:",
        }
    return app


def reach(broker_url: str, *, seconds: float = 3.0) -> None:
    """Ask the broker for a sign of life.

    Raises:
        OSError: It gives none in this time.
    """
    with make_app(broker_url).connection_for_write(connect_timeout=seconds) as connection:
        try:
            connection.ensure_connection(
                max_retries=1, interval_start=0, timeout=seconds, reraise_as_library_errors=True
            )
        except OperationalError as error:
            raise ConnectionError(str(error)) from error


class Ringer:
    """Rings the doorbell of some host: for the dispatcher of a process that has a broker.

    One worker hears each message; where it has no room, the others find the job at their next look.
    """

    def __init__(self, broker_url: str) -> None:
        self._app = make_app(broker_url)

    def ring(self) -> None:
        """Send one message, by its task's name: the sender imports no task.

        Raises:
            OSError: The broker does not answer; whoever waits finds the job by looking, a little later.
        """
        try:
            self._app.send_task(RING, ignore_result=True, retry=False)
        except OperationalError as error:
            raise ConnectionError(str(error)) from error
