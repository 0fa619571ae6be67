"""The service of a soak: one API process and one worker for containers, over PostgreSQL, Redis and an engine."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from support.deployment import wait_until
from support.faults.container_jobs_deployment import ContainerDeployment
from support.servers.postgres import PostgresServer
from support.servers.private_docker_engine import running_engine
from support.servers.redis_server import RedisServer

SLOTS = 8


class SoakDeployment(ContainerDeployment):
    """The whole service; `processes` has its two processes by name."""

    def start_all(self) -> None:
        """Start everything, and wait until it is ready."""
        self.migrate()
        api, worker = self.start_api(), self.start_worker(GRADIENT_WORKER__SLOTS=str(SLOTS))
        wait_until(lambda: "is ready" in worker.read_log(), "the worker")
        self.processes = {"api": api, "worker": worker}


@contextlib.contextmanager
def running_service(folder: Path) -> Iterator[SoakDeployment]:
    """The service, ready; nothing of it is left when the block ends.

    Args:
        folder: An empty one.
    """
    with contextlib.ExitStack() as left:
        server = left.enter_context(running_engine())
        postgres = PostgresServer(folder)
        left.callback(postgres.stop)
        postgres.start()
        (folder / "redis").mkdir()
        redis = RedisServer(folder / "redis")
        left.callback(redis.kill)
        redis.start()
        service = SoakDeployment(
            folder / "home",
            server,
            redis=redis,
            GRADIENT_DATABASE__URL=postgres.new_database(),
            GRADIENT_QUEUE__BROKER_URL=redis.url,
            GRADIENT_STATSD__PORT="0",
        )
        left.callback(service.stop)
        service.start_all()
        yield service
