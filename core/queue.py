"""The Celery app and its queues: the doorbell between hosts. The database is the truth; a message says "look".

Nothing here is imported where no broker is set.
"""

from collections.abc import Sequence
from typing import Any

from celery import Celery
from kombu.connection import Connection
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError

from core.rings import Ring

RING = "gradient.ring"
PING = "gradient.ping"
ENOUGH = 100
"""Messages that may wait in one queue. Whoever hears one of them looks for everything, so more say nothing more."""

_WORKER_SOCKET_SECONDS = 10.0
_SENDER_SOCKET_SECONDS = 1.0


_SETTINGS = {
    # Pickles would run whatever the sender likes.
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    # No result backend: the job's row is the only record of it.
    "task_ignore_result": True,
    # A worker that dies while it handles a message leaves it to others ...
    "task_acks_late": True,
    # ... but a message that kills its worker is not tried again: its job is found by looking.
    "task_reject_on_worker_lost": False,
    "task_publish_retry": False,
    "worker_prefetch_multiplier": 1,
    # Celery would take less after a reconnection, in case earlier tasks still run; ours take a moment.
    "worker_enable_prefetch_count_reduction": False,
    # To run a task twice is harmless, to end it within a commit is not.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    # A broadcast message, sent again by whoever, could stop workers or have them listen no more.
    "worker_enable_remote_control": False,
    "worker_send_task_events": False,
    # However long the broker is away: workers do their work meanwhile, and come back to it.
    "broker_connection_retry": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
}


def make_app(broker_url: str, *, socket_seconds: float = _WORKER_SOCKET_SECONDS) -> Celery:
    """The Celery app on this broker, with settings under which losing or doubling a message does no harm.

    Limits on a task's time and memory (task_time_limit, worker_max_tasks_per_child and their like) are not among
    them: they act on the processes of a prefork pool, and our tasks run in threads. That no task takes longer than a
    moment is a matter of what the tasks are.

    Args:
        broker_url: Where the broker is.
        socket_seconds: How long one command to Redis may take; it is tried a few times. More than the second that
            an idle worker's wait for messages takes.
    """
    # Not "current": which app that is would depend on who made one last.
    app = Celery("gradient", broker=broker_url, set_as_current=False)
    app.conf.update(_SETTINGS)
    if broker_url.startswith("redis"):
        app.conf.broker_transport_options = _redis_options(socket_seconds)
    return app


def _redis_options(socket_seconds: float) -> dict[str, object]:
    return {
        # Far above what any task takes: never delivered again while it runs.
        "visibility_timeout": 600,
        # Messages that a dead worker took: looked for every 10 s. By default kombu does at each tenth time only.
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        # A worker killed while it looks keeps the others from it for so long.
        "unacked_mutex_expire": 60,
        # Without these a Redis that hangs held its callers for over 90 seconds.
        "socket_timeout": socket_seconds,
        "socket_connect_timeout": min(3.0, socket_seconds),
        "socket_keepalive": True,
        # A connection of which the other end is gone is seen after so long.
        "health_check_interval": 10,
        # One list a queue, not four: each wait names all of them, and rings have no priorities.
        "priority_steps": [0],
        "global_keyprefix": "gradient:",
    }


def queue(name: str) -> Queue:
    """The queue of this name: sender, listener and whoever counts must declare the same."""
    exchange = Exchange(name, type="direct")  # type: ignore[no-untyped-call]  # kombu is typed in part
    return Queue(name, exchange, routing_key=name)  # type: ignore[no-untyped-call]  # the same


def reach(broker_url: str, *, seconds: float = 3.0) -> None:
    """Ask the broker for a sign of life.

    Raises:
        OSError: It gives none in this time.
    """
    with _connected(broker_url, seconds):
        pass


def waiting(broker_url: str, name: str, *, seconds: float = 3.0) -> int:
    """How many messages wait in this queue.

    Raises:
        OSError: The broker does not answer.
    """
    with _connected(broker_url, seconds) as connection:
        try:
            with connection.channel() as channel:
                return _count(name, channel)
        except connection.connection_errors as error:
            raise ConnectionError(str(error)) from error


def _connected(broker_url: str, seconds: float) -> Connection:
    app = make_app(broker_url, socket_seconds=_SENDER_SOCKET_SECONDS)
    connection: Connection = app.connection_for_write(connect_timeout=seconds)
    try:
        connection.ensure_connection(  # type: ignore[no-untyped-call]  # the same
            max_retries=1, interval_start=0, timeout=seconds, reraise_as_library_errors=True
        )
    except OperationalError as error:
        connection.release()  # type: ignore[no-untyped-call]  # the same
        raise ConnectionError(str(error)) from error
    return connection


def _count(name: str, channel: Any) -> int:  # noqa: ANN401 - any transport's
    declared: Any = queue(name)(channel).queue_declare()  # type: ignore[no-untyped-call]  # the same
    return int(declared.message_count)


class Ringer:
    """Sends messages, for whoever has a broker: the dispatcher's rings and a worker's pings.

    One worker hears each message; where it has no room, the others find the job at their next look.
    """

    def __init__(self, broker_url: str) -> None:
        self._app = make_app(broker_url, socket_seconds=_SENDER_SOCKET_SECONDS)
        with self._app.connection_for_write() as unused:  # none is opened
            # What this broker's library throws when the broker is away, or full.
            errors: tuple[Any, ...] = (*unused.connection_errors, *unused.channel_errors, OperationalError)
            self._errors: tuple[type[Exception], ...] = errors

    def ring(self, rings: Sequence[Ring]) -> None:
        """Send these messages, each to its queue, unless enough wait there already.

        Raises:
            OSError: The broker does not answer, or not in a few seconds. Some may have been sent: sending all of them
                again does no harm, and who waits finds the job by looking, a little later.
        """
        for ring in rings:
            self._send(RING, ring.queue, [ring.job_id, ring.request_id])

    def ping(self, name: str) -> None:
        """Send a message that says nothing at all: who hears it knows that messages arrive.

        Raises:
            OSError: The broker does not answer.
        """
        self._send(PING, name, [])

    def _send(self, task: str, name: str, args: list[str | None]) -> None:
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                if _count(name, producer.channel) < ENOUGH:
                    # By the task's name: the sender imports none.
                    self._app.send_task(
                        task, args, queue=queue(name), producer=producer, ignore_result=True, retry=False
                    )
        except self._errors as error:
            raise ConnectionError(str(error)) from error
