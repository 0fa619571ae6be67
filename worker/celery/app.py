"""The Celery worker of one host. It receives wake-up messages; the supervisor that starts with it runs the jobs."""

import os
import threading
from collections.abc import Callable
from typing import Any

from celery import bootsteps, signals

from core.jobs.scheduling.workers import note_heard
from core.notify.broker import Ringer, make_app, queue
from core.notify.local_notifier import Bell
from core.notify.messages import host_queue, pool_queue
from worker.celery import redis_transport, tasks
from worker.celery.broker_watchdog import Probe
from worker.context import Host
from worker.supervisor import Supervisor

DEAF = 70
"""Exit code of a worker that no longer receives messages."""

_LET_GO_SECONDS = 60.0


def queues(host: Host) -> list[str]:
    """Return the names of the queues that this worker consumes: one for each machine type it takes, and its own."""
    return [*dict.fromkeys(pool_queue(one.name) for one in host.takes()), host_queue(host.name)]


def run(broker_url: str, host: Host, supervisor: Supervisor, bell: Bell) -> int:
    """Run the Celery worker and its supervisor until SIGTERM; jobs keep running.

    Tasks run in threads: a pool of forked processes would be forked while attempts run in threads of their own.

    Returns:
        The exit code.
    """
    redis_transport.install()
    app = make_app(broker_url)
    app.conf.task_queues = [queue(name) for name in queues(host)]
    app.conf.worker_consumer = "worker.celery.consumer:Consumer"
    work = threading.Thread(target=supervisor.run, name="supervisor")

    def end() -> None:
        # Not through Celery: its thread may hang in the very fault that keeps messages from arriving.
        supervisor.stop()
        work.join(_LET_GO_SECONDS)
        os._exit(DEAF)

    probe = _probe(broker_url, host, end)
    tasks.register(app, bell, probe.heard)

    app.steps["worker"].add(_step(supervisor, work, probe))
    signals.setup_logging.connect(_leave_logging)
    worker = app.Worker(pool="threads", concurrency=2, loglevel=None, without_gossip=True, without_mingle=True)
    worker.start()
    return int(worker.exitcode or 0)


def _step(supervisor: Supervisor, work: threading.Thread, probe: Probe) -> type:
    class SupervisorStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery ships no types
        """Starts the supervisor after the worker's pool, and stops it with the worker.

        It starts before the consumer, which waits for the broker: jobs run even while the broker is down.
        """

        requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - celery's way of declaring it

        def start(self, parent: Any) -> None:  # noqa: ANN401 - celery's hook
            del parent
            work.start()
            probe.start()

        def stop(self, parent: Any) -> None:  # noqa: ANN401 - celery's hook
            del parent
            probe.stop()
            supervisor.stop()
            work.join()

    return SupervisorStep


def _leave_logging(**_: object) -> None:
    """Do nothing: a connected receiver keeps Celery from replacing our logging configuration."""


def _probe(broker_url: str, host: Host, on_deaf: Callable[[], None]) -> Probe:
    ringer = Ringer(broker_url)
    own = host_queue(host.name)
    return Probe(
        lambda: ringer.ping(own),
        lambda: host.write(lambda session: note_heard(session, host.name)),
        on_deaf,
        ping_seconds=host.settings.queue.ping_seconds,
        deaf_seconds=host.settings.queue.broker_silent_seconds,
    )
