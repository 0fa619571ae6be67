"""What the fault tests stand on: services that remember, with timers short enough to watch them work."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from faults.watched import Watched
from postgres import PostgresServer
from redisserver import RedisServer

QUICK = {
    "GRADIENT_WORKER__LEASE_SECONDS": "2",
    "GRADIENT_WORKER__HEARTBEAT_SECONDS": "0.5",
    "GRADIENT_WORKER__POLL_SECONDS": "0.2",
    "GRADIENT_WORKER__SWEEP_SECONDS": "0.5",
}


@pytest.fixture
def make_deployment(tmp_path: Path) -> Iterator[Callable[..., Watched]]:
    """Makes services that are gone when the test ends."""
    made: list[Watched] = []

    def make(**settings: str) -> Watched:
        made.append(Watched(tmp_path / f"home{len(made)}", **{**QUICK, **settings}))
        return made[-1]

    yield make
    for deployment in made:
        deployment.stop()


@pytest.fixture
def deployment(make_deployment) -> Watched:
    """Over SQLite; nothing of it is started yet."""
    return make_deployment()


@pytest.fixture
def shared(make_deployment, postgres: PostgresServer) -> Watched:
    """Over PostgreSQL: a process that is frozen while it holds SQLite's one write lock stops everybody."""
    deployment = make_deployment(GRADIENT_DATABASE__URL=postgres.new_database())
    deployment.migrate()
    return deployment


@pytest.fixture
def parts(make_deployment, postgres: PostgresServer, redis: RedisServer) -> Watched:
    """As docker-compose.yml starts it: PostgreSQL and Redis; nothing else is started yet."""
    url = postgres.new_database()
    deployment = make_deployment(redis=redis, GRADIENT_DATABASE__URL=url, GRADIENT_QUEUE__BROKER_URL=redis.url)
    deployment.migrate()
    return deployment
