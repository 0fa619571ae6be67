"""The Celery worker of one host. It receives wake-up messages; the supervisor that starts with it runs the jobs."""

import logging
import os
import threading
from collections.abc import Callable
from typing import Any

from celery import Celery, bootsteps, signals
from celery.apps import worker as celery_program
from celery.exceptions import Reject

from core.jobs.scheduling.workers import record_ping
from core.monitoring.logging import bind
from core.notify.celery_app import PING_TASK, WAKE_TASK, Publisher, make_app, queue
from core.notify.messages import machine_type_queue, worker_queue
from core.notify.wakeup_file import WakeupFile
from worker.celery import checked_messages
from worker.celery.broker_watchdog import BrokerWatchdog
from worker.context import WorkerContext
from worker.supervisor import Supervisor

EXIT_BROKER_SILENT = 70  # exit code of a worker that no longer receives messages

_STOP_SECONDS = 60.0
logger = logging.getLogger(__name__)
_MAX_ID_LENGTH = 64


def queues(context: WorkerContext) -> list[str]:
    """Return the names of the queues that this worker consumes: one for each machine type it takes, and its own."""
    return [
        *dict.fromkeys(machine_type_queue(one.name) for one in context.machine_types()),
        worker_queue(context.worker_name),
    ]


def run(broker_url: str, context: WorkerContext, supervisor: Supervisor, notifier: WakeupFile) -> int:
    """Run the Celery worker and its supervisor until SIGTERM; jobs keep running.

    Tasks run in threads: a pool of forked processes would be forked while attempts run in threads of their own. Returns
    the exit code.
    """
    checked_messages.install()
    app = make_app(broker_url)
    app.conf.task_queues = [queue(name) for name in queues(context)]
    app.conf.worker_consumer = "worker.celery.checked_messages:Consumer"
    supervisor_thread = threading.Thread(target=supervisor.run, name="supervisor")

    def end() -> None:
        supervisor.stop()  # not through Celery: its thread may hang in the very fault that keeps messages from arriving
        supervisor_thread.join(_STOP_SECONDS)
        os._exit(EXIT_BROKER_SILENT)

    publisher = Publisher(broker_url)
    own_queue = worker_queue(context.worker_name)
    watchdog = BrokerWatchdog(
        lambda: publisher.publish_ping(own_queue),
        lambda: context.write(lambda session: record_ping(session, context.worker_name)),
        end,
    )
    register(app, notifier, watchdog.ping_received)

    app.steps["worker"].add(_supervisor_step(supervisor, supervisor_thread, watchdog))
    signals.setup_logging.connect(_keep_own_logging)
    vars(celery_program)["safe_say"] = _print_nothing
    worker = app.Worker(
        quiet=True, pool="threads", concurrency=2, loglevel=None, without_gossip=True, without_mingle=True
    )
    worker.start()
    return int(worker.exitcode or 0)


def _supervisor_step(supervisor: Supervisor, supervisor_thread: threading.Thread, watchdog: BrokerWatchdog) -> type:
    class SupervisorStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery ships no types
        """Starts the supervisor after the worker's pool, and stops it with the worker.

        It starts before the consumer, which waits for the broker: jobs run even while the broker is down.
        """

        requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - celery's way of declaring it

        def start(self, parent: Any) -> None:  # noqa: ANN401 - celery's hook
            del parent
            supervisor_thread.start()
            watchdog.start()

        def stop(self, parent: Any) -> None:  # noqa: ANN401 - celery's hook
            del parent
            watchdog.stop()
            supervisor.stop()
            supervisor_thread.join()

    return SupervisorStep


def _print_nothing(*_: object) -> None:
    """Do nothing: Celery would print to stdout, past the log, that it stops."""


def _keep_own_logging(**_: object) -> None:
    """Do nothing: a connected receiver keeps Celery from replacing our logging configuration."""


def register(app: Celery, notifier: WakeupFile, ping_received: Callable[[], None] = lambda: None) -> None:
    """Register the tasks of this host with the app. `ping_received`: called for each ping.

    Each is short; none waits for a job or queries the database. Messages may be lost, duplicated, late, or forged by
    anyone who can reach the broker: all they can do is make this host look for work once more.
    """

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
