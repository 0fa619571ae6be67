"""The Celery worker of one host: it hears the doorbell, and its supervisor, started with it, does the work."""

import threading
from typing import Any

from celery import bootsteps

from core.bell import Bell
from core.queue import QUEUE, make_app
from worker import tasks
from worker.supervisor import Supervisor


def run(broker_url: str, supervisor: Supervisor, bell: Bell) -> None:
    """Run the Celery worker with this supervisor in it until SIGTERM; jobs run on.

    Tasks run in threads: a pool of forked processes would be forked while attempts run in threads of their own.
    """
    app = make_app(broker_url)
    tasks.register(app, bell)

    class SupervisorStep(bootsteps.StartStopStep):  # type: ignore[misc]  # celery ships no types
        """Starts the supervisor once the worker's pool is there, and stops it with the worker."""

        requires = {"celery.worker.components:Pool"}  # noqa: RUF012 - celery's way of declaring it

        def __init__(self, parent: Any, **options: Any) -> None:  # noqa: ANN401 - celery's hook
            super().__init__(parent, **options)
            self._thread = threading.Thread(target=supervisor.run, name="supervisor")

        def start(self, parent: Any) -> None:  # noqa: ANN401 - celery's hook
            del parent
            self._thread.start()

        def stop(self, parent: Any) -> None:  # noqa: ANN401 - celery's hook
            del parent
            supervisor.stop()
            self._thread.join()

    app.steps["worker"].add(SupervisorStep)
    worker = app.Worker(queues=[QUEUE], pool="threads", concurrency=2, loglevel=None, without_gossip=True)
    worker.start()
