"""Fixtures of the fault tests: services that record what they answer, with timers short enough to watch them work."""

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faults.container_jobs_deployment import ENGINE_INTERNALS, ContainerDeployment, list_engine_objects
from support.faults.observed_deployment import ObservedDeployment
from support.servers.postgres import PostgresServer
from support.servers.private_docker_engine import PrivateDockerEngine, running_engine
from support.servers.redis_server import RedisServer

SHORT_TIMERS = {
    "GRADIENT_WORKER__LEASE_SECONDS": "2",
    "GRADIENT_WORKER__POLL_SECONDS": "0.2",
    "GRADIENT_WORKER__SWEEP_SECONDS": "0.5",
    "GRADIENT_DISK__MIN_FREE_MB": "0",  # some of their disks have a few bytes
}


@pytest.fixture
def make_deployment(tmp_path: Path) -> Iterator[Callable[..., ObservedDeployment]]:
    """Makes services that are gone when the test ends."""
    made: list[ObservedDeployment] = []

    def make(**settings: str) -> ObservedDeployment:
        made.append(ObservedDeployment(tmp_path / f"home{len(made)}", **{**SHORT_TIMERS, **settings}))
        return made[-1]

    yield make
    for deployment in made:
        deployment.stop()


@pytest.fixture
def deployment(make_deployment) -> ObservedDeployment:
    """Over SQLite; nothing of it is started yet."""
    return make_deployment()


@pytest.fixture
def postgres_deployment(make_deployment, postgres: PostgresServer) -> ObservedDeployment:
    """Over PostgreSQL: a process that is frozen while it holds SQLite's one write lock stops everybody."""
    deployment = make_deployment(GRADIENT_DATABASE__URL=postgres.new_database())
    deployment.migrate()
    return deployment


@pytest.fixture
def full_deployment(make_deployment, postgres: PostgresServer, redis: RedisServer) -> ObservedDeployment:
    """As docker-compose.yml starts it: PostgreSQL and Redis; nothing else is started yet."""
    url = postgres.new_database()
    deployment = make_deployment(redis=redis, GRADIENT_DATABASE__URL=url, GRADIENT_QUEUE__BROKER_URL=redis.url)
    deployment.migrate()
    return deployment


@pytest.fixture(scope="module")
def killable_engine() -> Iterator[PrivateDockerEngine]:
    """An engine to be killed, apart from the one that other tests use."""
    with running_engine() as server:
        yield server


@pytest.fixture
def make_engine() -> Iterator[Callable[..., PrivateDockerEngine]]:
    """Makes engines of a test's own."""
    with contextlib.ExitStack() as made:
        yield lambda **options: made.enter_context(running_engine(**options))


@pytest.fixture
def make_container_deployment(tmp_path: Path, make_engine) -> Iterator[Callable[..., ContainerDeployment]]:
    """Makes services over an engine; when the test ends, the engine has what it had before."""
    del make_engine  # what it made outlives what stands on it
    made: list[ContainerDeployment] = []
    before: dict[PrivateDockerEngine, Counter[tuple[str, str]]] = {}

    def make(server: PrivateDockerEngine, url: str | None = None, **settings: str) -> ContainerDeployment:
        before.setdefault(server, list_engine_objects(server))
        made.append(
            ContainerDeployment(tmp_path / f"contained{len(made)}", server, url=url, **{**SHORT_TIMERS, **settings})
        )
        return made[-1]

    yield make
    for deployment in made:
        deployment.stop()
    for server, had in before.items():
        forgotten = ENGINE_INTERNALS if server.kill_count else set()
        left = [f"{kind} {name}" for kind, name in sorted(list_engine_objects(server) - had) if kind not in forgotten]
        assert not left, "\n".join(["left behind in the engine:", *left])


@pytest.fixture
def container_deployment(make_container_deployment, docker_server: PrivateDockerEngine) -> ContainerDeployment:
    """Jobs in containers of the engine that nobody harms; nothing of the service is started yet."""
    return make_container_deployment(docker_server)
