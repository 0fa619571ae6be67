"""A real application over SQLite, behind a real uvicorn."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from schemathesis.python.asgi import shutdown_lifespans
from support.deployment import WITHOUT_TLS
from support.fuzzing import Fuzzed
from support.live_service import Live, Worker

from core.db import migrations
from core.db.database import Database
from core.security import api_keys
from core.settings import Settings
from core.settings.api import ApiSettings
from service.deps import OpenStores
from service.main import create_app


@pytest.fixture
def settings(tmp_path: Path, migrated_sqlite: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(migrated_sqlite, home / "gradient.db")
    return Settings(home=home, api=ApiSettings(max_upload_bytes=20 * 1024**2, max_unpacked_bytes=40 * 1024**2))


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    database = Database(settings.database_url)
    yield database
    database.close()


@pytest.fixture
def woken() -> list[str]:
    """One entry for each call of the application's `wake`."""
    return []


@pytest.fixture
def app(settings: Settings, database: Database, woken: list[str]) -> FastAPI:
    return create_app(settings, database=database, wake=lambda: woken.append("wake"))


@pytest.fixture
def stores(app: FastAPI) -> OpenStores:
    return app.state.stores


@pytest.fixture
def secret(database: Database) -> str:
    with database.write() as session:
        return api_keys.create(session, "tests")[1]


@pytest.fixture
def live(app: FastAPI, secret: str) -> Iterator[Live]:
    live = Live(app, secret)
    yield live
    live.stop()


@pytest.fixture
def client(live: Live) -> Iterator[httpx.Client]:
    with live.client() as client:
        yield client


@pytest.fixture
def stranger(live: Live) -> Iterator[httpx.Client]:
    """A client without a key."""
    with httpx.Client(base_url=live.url, timeout=60, verify=WITHOUT_TLS) as client:
        yield client


@pytest.fixture
def worker(stores: OpenStores) -> Worker:
    return Worker(stores)


@pytest.fixture(scope="session", params=["sqlite", "postgresql"])
def fuzzed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fuzzed]:
    """An application to send anything to, over each kind of database."""
    home = tmp_path_factory.mktemp("fuzzed")
    url = f"sqlite:///{home / 'gradient.db'}"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres").new_database()
    database = Database(url)
    migrations.upgrade(database)
    yield Fuzzed(home, database)
    shutdown_lifespans()
    database.close()
