"""Databases for tests: SQLite always, PostgreSQL as a private server that this run starts."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import Deployment
from postgres import PostgresServer, find_binaries

from core import schema
from core.db import Database
from core.jobs import lifecycle
from core.jobs.lifecycle import Submission
from core.jobs.models import Job
from core.jobs.spec import JobSpec
from core.machines import Catalogue

_MISSING = "PostgreSQL's server programs are not installed (apt-get install postgresql)"
_not_run: list[str] = []


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take tests out that need what is not here; they are reported as not run, never as passed."""
    if find_binaries() is not None:
        return
    wanting = [item for item in items if "postgresql" in getattr(item, "callspec", item).__dict__.get("id", "")]
    if os.environ.get("CI") and wanting:
        raise pytest.UsageError(_MISSING)
    items[:] = [item for item in items if item not in wanting]
    config.hook.pytest_deselected(items=wanting)
    _not_run.extend(item.nodeid for item in wanting)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _not_run:
        terminalreporter.write_sep("=", f"NOT RUN: {len(_not_run)} tests: {_MISSING}", yellow=True)


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A private PostgreSQL server, gone when the run ends."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty, migrated database of each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'gradient.db'}"
    else:
        url = request.getfixturevalue("postgres").new_database()
    database = Database(url)
    schema.upgrade(database)
    yield database
    database.close()


@pytest.fixture
def sqlite_database(tmp_path: Path) -> Iterator[Database]:
    """An empty, migrated SQLite database, where the kind makes no difference."""
    database = Database(f"sqlite:///{tmp_path / 'gradient.db'}")
    schema.upgrade(database)
    yield database
    database.close()


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return Catalogue.load()


class Submitter:
    """Makes jobs the way the service does."""

    def __init__(self, database: Database, catalogue: Catalogue) -> None:
        self._database = database
        self._catalogue = catalogue

    def __call__(self, command: str = "true", *, key=None, digest=None, **spec) -> Job:
        with self._database.write() as session:
            project, _ = lifecycle.ensure_project(session, "default")
            job, _ = lifecycle.submit(
                session,
                Submission(
                    spec=JobSpec(machine_type="CPU", command=command, **spec),
                    machine=self._catalogue.get("CPU"),
                    backend="mock",
                    project=project,
                    submitted_by="tester",
                    idempotency_key=key,
                    request_sha256=digest,
                ),
            )
        return job


@pytest.fixture
def submit(database: Database, catalogue: Catalogue) -> Submitter:
    return Submitter(database, catalogue)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A service that is not started yet; whatever a test starts of it is gone afterwards."""
    deployment = Deployment(tmp_path / "home")
    yield deployment
    deployment.stop()
