"""The Celery worker of one host. It receives wake-up messages; the supervisor that starts with it runs the jobs."""

import logging
import threading
from typing import Any

from celery import Celery, bootsteps, signals
from celery.apps import worker as celery_program
from celery.exceptions import Reject

from core.monitoring.logging import bind
from core.notify.celery_app import WAKE_TASK, make_app, queue
from core.notify.messages import machine_type_queue, worker_queue
from core.notify.wakeup_file import WakeupFile
from worker.celery import checked_messages
from worker.context import WorkerContext
from worker.supervisor import Supervisor

logger = logging.getLogger(__name__)
_MAX_ID_LENGTH = 64


def queues(context: WorkerContext) -> list[str]:
    """Return the names of the queues that this worker consumes: one for each machine type it takes, and its own."""
    return [
        *dict.fromkeys(machine_type_queue(machine_type.name) for machine_type in context.machine_types()),
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
    register(app, notifier)
    app.steps["worker"].add(_supervisor_step(supervisor))
    signals.setup_logging.connect(_keep_own_logging)
    vars(celery_program)["safe_say"] = _print_nothing
    worker = app.Worker(
        quiet=True, pool="threads", concurrency=2, loglevel=None, without_gossip=True, without_mingle=True
    )
    worker.start()
    return int(worker.exitcode or 0)


def _supervisor_step(supervisor: Supervisor) -> type:
    thread = threading.Thread(target=supervisor.run, name="supervisor")

    class SupervisorStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery ships no types
        """Starts the supervisor after the worker's pool, and stops it with the worker.

        It starts before the consumer, which waits for the broker: jobs run even while the broker is down.
        """

        requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - celery's way of declaring it

        def start(self, parent: Any) -> None:  # noqa: ANN401 - celery's hook
            del parent
            thread.start()

        def stop(self, parent: Any) -> None:  # noqa: ANN401 - celery's hook
            del parent
            supervisor.stop()
            thread.join()

    return SupervisorStep


def _print_nothing(*_: object) -> None:
    """Do nothing: Celery would print to stdout, past the log, that it stops."""


def _keep_own_logging(**_: object) -> None:
    """Do nothing: a connected receiver keeps Celery from replacing our logging configuration."""


def register(app: Celery, notifier: WakeupFile) -> None:
    """Register the task of this host with the app.

    It is short, and neither waits for a job nor queries the database. Messages may be lost, duplicated, late, or forged
    by anyone who can reach the broker: all they can do is make this host look for work once more.
    """

    def wake(job_id: object, request_id: object = None) -> None:
        if not _is_id(job_id) or not (request_id is None or _is_id(request_id)):
            raise Reject("a wake message carries a job's id and a request's, or null", requeue=False)
        bind(job_id=job_id, request_id=request_id)
        logger.debug("wake_received")
        notifier.notify()

    app.task(wake, name=WAKE_TASK, shared=False)  # not with every app of this process


def _is_id(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MAX_ID_LENGTH
