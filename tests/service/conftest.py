"""A real application over SQLite, behind a real uvicorn."""

import shutil
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from schemathesis.python.asgi import shutdown_lifespans
from starlette.routing import BaseRoute
from support.fuzz_target import FuzzTarget
from support.live_service import FakeWorker, InProcessServer, LiveServer

from core.db import migrations
from core.db.database import Database
from core.db.models.jobs import Attempt
from core.jobs.tracking import metrics
from core.security import api_keys, users
from core.settings import Settings
from core.settings.api import ApiSettings
from core.settings.worker import EnvironmentSettings, MachineSettings
from service.app_state import AppState
from service.main import create_app


@pytest.fixture(scope="session")
def common_settings() -> Settings:
    """Settings to copy: reading the environment for all of them costs more than most requests."""
    return Settings(
        api=ApiSettings(max_upload_bytes=20 * 1024**2),
        environments=EnvironmentSettings(default="trainer"),
    )


@pytest.fixture
def settings(tmp_path: Path, migrated_sqlite: Path, common_settings: Settings) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(migrated_sqlite, home / "gradient.db")
    return common_settings.model_copy(update={"home": home}, deep=True)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url)
    yield database
    database.close()


@pytest.fixture
def wake_calls() -> list[str]:
    """One entry for each call of the application's `wake`."""
    return []


@pytest.fixture(scope="session")
def shared_routes() -> list[BaseRoute]:
    """The routes of the first application: FastAPI examines each of them once, at the first request."""
    return []


@pytest.fixture
def app(settings: Settings, database: Database, wake_calls: list[str], shared_routes: list[BaseRoute]) -> FastAPI:
    app = create_app(settings, database=database, wake=lambda: wake_calls.append("wake"))
    shared_routes += [] if shared_routes else app.router.routes
    app.router.routes = list(shared_routes)
    return app


@pytest.fixture
def stores(app: FastAPI) -> AppState:
    return app.state.app_state


@pytest.fixture
def api_key(database: Database) -> str:
    with database.write() as session:
        return api_keys.create(session, "tests")[1]


@pytest.fixture
def add_key(database: Database) -> Callable[..., tuple[str, dict[str, str]]]:
    """A function that makes a key, of a user or nobody's, and returns its id and the header with it."""

    def add(name: str, user_id: str | None = None) -> tuple[str, dict[str, str]]:
        with database.write() as session:
            key, secret = (
                api_keys.create(session, name) if user_id is None else users.create_key_for(session, user_id, name)
            )
        return key.id, {"x-api-key": secret}

    return add


@pytest.fixture
def bob(add_key: Callable[..., tuple[str, dict[str, str]]]) -> tuple[str, dict[str, str]]:
    return add_key("bob")


@pytest.fixture
def live_server(app: FastAPI, api_key: str, request: pytest.FixtureRequest) -> Iterator[LiveServer]:
    live_server = LiveServer(app, api_key, *([request.param] if hasattr(request, "param") else []))
    yield live_server
    live_server.stop()


@pytest.fixture
def server(app: FastAPI, api_key: str, request: pytest.FixtureRequest) -> Iterator[LiveServer | InProcessServer]:
    """The application: in this process, but for a test that asks for a live server, too."""

    if "live_server" in request.fixturenames:
        yield request.getfixturevalue("live_server")
        return
    server = InProcessServer(app, api_key)
    yield server
    server.stop()


@pytest.fixture
def client(server: LiveServer | InProcessServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


@pytest.fixture
def docker_client(settings: Settings, database: Database, api_key: str) -> Iterator[httpx.Client]:
    """A client of a server whose jobs run in containers."""
    settings = settings.model_copy(update={"machines": MachineSettings(simulate=False)})
    server = InProcessServer(create_app(settings, database=database, wake=lambda: None), api_key)
    yield server.client()
    server.stop()


@pytest.fixture
def anonymous_client(server: LiveServer | InProcessServer) -> Iterator[httpx.Client]:
    """A client without a key."""
    with server.client(headers={}) as client:
        yield client


@pytest.fixture
def worker(stores: AppState) -> FakeWorker:
    return FakeWorker(stores)


# PostgreSQL refuses more of what a fuzzer sends.
@pytest.fixture(scope="session", params=[pytest.param("sqlite", marks=pytest.mark.slow), "postgresql"])
def fuzz_target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FuzzTarget]:
    """An application to send anything to, over each kind of database."""
    home = tmp_path_factory.mktemp("fuzzed")
    url = f"sqlite:///{home / 'gradient.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").new_database()
    database = Database(url)
    migrations.upgrade(database)
    yield FuzzTarget(home, database)
    shutdown_lifespans()
    database.close()


@pytest.fixture
def train(worker: FakeWorker, database: Database) -> Callable[..., str]:
    """A function that runs the next job in line, with reports each `seconds` and 10 steps: accuracies, or values."""
    worker.register()
    ends: list[datetime] = []

    def train(seconds: float, reports: list[float | dict[str, float]], reason: str = "completed") -> str:
        job = worker.start()
        with database.write() as session:
            attempt = session.get(Attempt, (job.id, job.attempt))
            # One after the other, though the runs are only written.
            started = attempt.started_at = max([attempt.started_at, *ends])
            attempt.peak_memory_bytes = 1000
            row = {"job_id": job.id, "attempt": job.attempt, "source": "job"}
            rows = [
                row
                | {"offset": n, "step": 10.0 * n, "at": started + timedelta(seconds=seconds * n)}
                | {"values": report if isinstance(report, dict) else {"accuracy": report, "lr": 0.1}}
                for n, report in enumerate(reports, 1)
            ]
            metrics.add(session, rows)
        worker.end(job, reason, **({} if reason == "completed" else {"exit_code": 1}))
        with database.write() as session:
            attempt = session.get(Attempt, (job.id, job.attempt))
            attempt.ended_at = started + timedelta(seconds=seconds * len(reports))
            ends.append(attempt.ended_at)
        return job.id

    return train
