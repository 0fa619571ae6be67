"""The service as it is run in production, on this machine: PostgreSQL, Redis, a container engine, two API processes,
two workers of the process backend on one host name and one for containers, each behind proxies of its own.

A keeper starts again what ends, as the systemd units do. GRADIENT_HOME is a disk of its own, which can be filled; what
jobs write down about themselves lies on another.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from chaos.clock import WallClock, find_compiler
from sqlalchemy import select
from support.deployment import TIMEOUT_SECONDS, Process, wait_until
from support.faults.container_jobs_deployment import ContainerDeployment
from support.faults.proxy import Proxy
from support.free_port import free_port
from support.servers.postgres import PostgresServer
from support.servers.private_docker_engine import PrivateDockerEngine, running_engine
from support.servers.redis_server import RedisServer
from support.small_disk import SmallDisk

from core.db.models.jobs import Job

RESTART_SECONDS = 2.0
HOME_BYTES = 2 * 1024**3
API_PROCESSES, WORKERS, DOCKER_WORKER = ("api1", "api2"), ("w1", "w2"), "w3"
PROCESS_TYPE, DOCKER_TYPE = "Simulated CPU", "CPU"
BACKENDS = {PROCESS_TYPE: "process", DOCKER_TYPE: "docker"}
_CATALOGUE = f"""
["{PROCESS_TYPE}"]
aliases = []
backend = "process"
kind = "cpu"
accelerator = "this machine"
count = 1
replicas = 1
cpus = 2
memory_gb = 4
memory_bandwidth_gb_per_s = 10
tflops = {{ fp32 = 0.1 }}
price_per_hour = 0.01
price_source = "made up"
spec_source = "made up"
"""


@dataclass
class SupervisedProcess:
    """A process that is started again whenever it has ended."""

    name: str
    start: Callable[[], Process]
    process: Process | None = None
    ended_at: float | None = None
    exits: list[tuple[float, int | None]] = field(default_factory=list)
    """Time, by the monotonic clock, and exit code of each end."""

    def alive(self) -> bool:
        return self.process is not None and self.process.alive()


class Stack(ContainerDeployment):
    """The whole service.

    Args:
        folder: The folder of everything.
        server: The engine.
        postgres: The database's server.
        redis: The broker.
        disk: The disk that is mounted at the home.
    """

    def __init__(
        self,
        folder: Path,
        *,
        server: PrivateDockerEngine,
        postgres: PostgresServer,
        redis: RedisServer,
        disk: SmallDisk,
    ) -> None:
        catalogue = folder / "machines.toml"
        catalogue.write_text(_CATALOGUE)
        (folder / "storage").mkdir()
        (disk.folder / "storage").symlink_to(folder / "storage")
        super().__init__(
            disk.folder,
            server,
            redis=redis,
            GRADIENT_DATABASE__URL=postgres.new_database(),
            GRADIENT_QUEUE__BROKER_URL=redis.url,
            GRADIENT_MACHINES__FILE=str(catalogue),
            GRADIENT_STATSD__PORT="0",
        )
        self.postgres, self.redis, self.disk = postgres, redis, disk
        self.clock = WallClock(folder) if find_compiler() else None
        self.proxies: dict[str, dict[str, Proxy]] = {}
        self.services: dict[str, SupervisedProcess] = {}
        self.ports = {name: free_port() for name in API_PROCESSES}
        self._key = ""
        self._stopping = threading.Event()
        self._restarter = threading.Thread(target=self._restart_forever, daemon=True)

    @property
    def urls(self) -> list[str]:
        """Base URLs of the API processes."""
        return [f"http://127.0.0.1:{port}" for port in self.ports.values()]

    @property
    def cli_json(self) -> dict[str, str]:
        return {"url": self.urls[0], "apiKey": self._key or super().cli_json["apiKey"]}

    def start_all(self) -> None:
        """Start everything, and wait until it is ready."""
        self.migrate()
        for name in API_PROCESSES:
            self._add(name, "api", "--port", str(self.ports[name]))
        for name in WORKERS:
            moved = self.clock.environment() if self.clock and name == WORKERS[-1] else {}
            simulated = {"GRADIENT_MACHINES__SIMULATE": "true", "GRADIENT_WORKER__HOST": "simulated-host"}
            self._add(name, "worker", "--name", name, **simulated, **moved)
        self._add(DOCKER_WORKER, "worker", "--name", DOCKER_WORKER, GRADIENT_WORKER__HOST="docker-host")
        self._restarter.start()
        first = self.services[API_PROCESSES[0]].process
        assert first is not None
        self.wait_ready(first)
        self._key = self.cli_json["apiKey"]
        ready = [self.services[name] for name in (*WORKERS, DOCKER_WORKER)]
        wait_until(lambda: all("is ready" in one.process.read_log() for one in ready), "the workers")

    def _add(self, name: str, *arguments: str, **settings: str) -> None:
        proxies = self.proxies[name] = {"postgres": Proxy(self.postgres.socket), "redis": Proxy(self.redis.port)}
        settings = {
            "GRADIENT_DATABASE__URL": proxies["postgres"].url(self.database_url),
            "GRADIENT_QUEUE__BROKER_URL": self.redis.url_at(proxies["redis"].port),
            "GRADIENT_WORKER__SLOTS": "8",
        } | settings
        service = self.services[name] = SupervisedProcess(name, lambda: self.start(*arguments, **settings))
        service.process = service.start()

    def _restart_forever(self) -> None:
        while not self._stopping.wait(0.1):
            for one in self.services.values():
                if one.alive():
                    continue
                now = time.monotonic()
                if one.ended_at is None:
                    one.ended_at = now
                    one.exits.append((now, one.process.exit_code()))
                elif now - one.ended_at >= RESTART_SECONDS:
                    one.process, one.ended_at = one.start(), None

    def ended_ids(self) -> set[str]:
        """Jobs that have ended, by the database."""
        with self.database() as database, database.read() as session:
            return set(session.scalars(select(Job.id).where(Job.finished_at.is_not(None))))

    def shut_down(self, seconds: float = TIMEOUT_SECONDS) -> None:
        """Ask the service's processes to end, and wait until they have."""
        self._stopping.set()
        self._restarter.join()
        living = [one.process for one in self.services.values() if one.alive()]
        for process in living:
            process.signal(15)
        wait_until(lambda: not any(process.alive() for process in living), "the service to end", seconds)

    def stop(self) -> None:
        self._stopping.set()
        if self._restarter.is_alive():
            self._restarter.join()
        super().stop()
        for proxy in (one for both in self.proxies.values() for one in both.values()):
            proxy.close()


@contextlib.contextmanager
def running_stack(folder: Path) -> Iterator[Stack]:
    """Everything, started and ready; nothing of it is left when the block ends.

    Args:
        folder: An empty one.
    """
    with contextlib.ExitStack() as left:
        disk = SmallDisk(folder / "home")
        assert disk.mount(HOME_BYTES)
        left.callback(disk.unmount)
        server = left.enter_context(running_engine())  # after the mount: its name space has what was there
        postgres = PostgresServer(folder)
        left.callback(postgres.stop)
        postgres.start()
        (folder / "redis").mkdir()
        redis = RedisServer(folder / "redis")
        left.callback(redis.kill)
        redis.start()
        stack = Stack(folder, server=server, postgres=postgres, redis=redis, disk=disk)
        left.callback(stack.stop)
        stack.start_all()
        yield stack


def new_idempotency_key() -> str:
    """An Idempotency-Key."""
    return secrets.token_hex(12)
