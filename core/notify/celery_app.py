"""The Celery app and its queues, which wake workers on other hosts. All state is in the database, none in messages.

Not imported unless a broker is configured.
"""

from collections.abc import Sequence
from typing import Any

from celery import Celery
from kombu.entity import Exchange, Queue
from kombu.exceptions import OperationalError

from core.notify.messages import WakeMessage

WAKE_TASK = "gradient.wake"
KEY_PREFIX = "gradient:"
MAX_QUEUE_LENGTH = 100
"""Most messages in one queue. Any one of them makes a worker check for all due work, so more add nothing."""

_WORKER_SOCKET_SECONDS = 10.0
_SENDER_SOCKET_SECONDS = 1.0


_SETTINGS = {
    # Pickle would let senders execute code.
    "task_serializer": "json",
    "result_serializer": "json",
    "accept_content": ["json"],
    # No result backend: the job's row is the only record of it.
    "task_ignore_result": True,
    # If a worker dies while it handles a message, others get it ...
    "task_acks_late": True,
    # ... but a message that kills its worker is not redelivered: its job is found by polling.
    "task_reject_on_worker_lost": False,
    "task_publish_retry": False,
    "worker_prefetch_multiplier": 1,
    # Celery would prefetch less after a reconnection, in case earlier tasks still run; ours are short.
    "worker_enable_prefetch_count_reduction": False,
    # Running a task twice is harmless; ending it during a commit is not.
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    # A forged or replayed broadcast message could stop workers or make them stop consuming.
    "worker_enable_remote_control": False,
    "worker_send_task_events": False,
    # Workers work without the broker and reconnect, however long it is down.
    "broker_connection_retry": True,
    "broker_connection_retry_on_startup": True,
    "broker_connection_max_retries": None,
    # The same if it answers with an error: its disk or its memory is full, or it has become a replica.
    "broker_channel_error_retry": True,
    "worker_hijack_root_logger": False,
    "worker_redirect_stdouts": False,
}


def make_app(broker_url: str, *, socket_seconds: float = _WORKER_SOCKET_SECONDS) -> Celery:
    """Create the Celery app for this broker, with settings under which a lost or doubled message does no harm.

    Limits on a task's time and memory (task_time_limit, worker_max_tasks_per_child etc.) are not set: they act on the
    processes of a prefork pool, and our tasks run in threads. The tasks themselves are short. `socket_seconds`: timeout
    of one command to Redis, which is tried a few times. Must exceed the 1 s for which an idle worker blocks waiting for
    messages.
    """
    # Not "current", which would depend on the order in which apps are created.
    app = Celery("gradient", broker=broker_url, set_as_current=False)
    app.conf.update(_SETTINGS)
    if broker_url.startswith("redis"):
        app.conf.broker_transport_options = _redis_options(socket_seconds)
    return app


def _redis_options(socket_seconds: float) -> dict[str, object]:
    return {
        # Far longer than any task: a message is not redelivered while its task runs.
        "visibility_timeout": 600,
        # Restore the messages of a dead worker every 10 s; by default kombu does so only at every tenth interval.
        "unacked_restore_interval": 10,
        "unacked_restore_throttle": 1,
        # A worker killed while it restores messages blocks the others for this long.
        "unacked_mutex_expire": 60,
        # Without these timeouts, a hung Redis blocked callers for over 90 seconds.
        "socket_timeout": socket_seconds,
        "socket_connect_timeout": min(3.0, socket_seconds),
        "socket_keepalive": True,
        # Seconds after which a dead connection is detected.
        "health_check_interval": 10,
        # One list per queue instead of four, because messages have no priorities.
        "priority_steps": [0],
        "global_keyprefix": KEY_PREFIX,
    }


def queue(name: str) -> Queue:
    """Return the queue of this name; all users must declare it with the same arguments."""
    exchange = Exchange(name, type="direct")  # type: ignore[no-untyped-call]  # kombu is typed in part
    return Queue(name, exchange, routing_key=name)  # type: ignore[no-untyped-call]  # the same


class Publisher:
    """Sends the dispatcher's wake messages to the broker.

    One worker receives each message; if it has no free slot, the others find the job at their next poll.
    """

    def __init__(self, broker_url: str) -> None:
        self._app = make_app(broker_url, socket_seconds=_SENDER_SOCKET_SECONDS)
        with self._app.connection_for_write() as unused:  # opens no connection
            # Exceptions of the broker's client library when the broker is down or full.
            errors: tuple[Any, ...] = (*unused.connection_errors, *unused.channel_errors, OperationalError)
            self._errors: tuple[type[Exception], ...] = errors

    def publish_wake(self, messages: Sequence[WakeMessage]) -> None:
        """Send these messages, each to its queue, unless enough wait there already.

        Raises `OSError`: the broker does not answer within a few seconds. Some messages may have been sent: sending all
        of them again does no harm, and workers also find jobs by polling.
        """
        for message in messages:
            self._send(message)

    def _send(self, message: WakeMessage) -> None:
        to, args = queue(message.queue), [message.job_id, message.request_id]
        try:
            with self._app.producer_pool.acquire(block=True) as producer:
                declared: Any = to(producer.channel).queue_declare()  # type: ignore[no-untyped-call]  # the same
                if declared.message_count < MAX_QUEUE_LENGTH:
                    # By the task's name, because the sender does not import the tasks.
                    self._app.send_task(WAKE_TASK, args, queue=to, producer=producer, ignore_result=True, retry=False)
        except self._errors as error:
            raise ConnectionError(str(error)) from error
