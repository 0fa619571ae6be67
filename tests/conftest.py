"""Shared fixtures: databases, service processes. Deselects slow tests, and those whose requirements are missing."""

import functools
import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import hypothesis
import pytest
from sqlalchemy import make_url
from support import levels, networks, slurm_cluster, work_units
from support.browser import Chromium, find_chromium
from support.deployment import PLAIN_JOBS, Deployment
from support.faults import fault_report
from support.faults.proxy import Proxy
from support.job_insertion import JobSubmitter
from support.job_packages import EXAMPLES, has_default_packages, has_packages_of
from support.light_database import use_light_databases
from support.npm_packages import find_axe_core, find_azurite
from support.servers.otlp_collector import OtlpCollector
from support.servers.pgbouncer import find_pgbouncer
from support.servers.postgres import PostgresServer, find_binaries
from support.servers.private_docker_engine import PrivateDockerEngine, missing_docker_requirements, running_engine
from support.servers.redis_server import RedisServer, find_redis
from support.slurm_cluster import SlurmCluster, running_cluster
from support.small_disk import SmallDisk, find_mount

from core.catalogue.machine_types import Catalogue
from core.db import migrations
from core.db.database import Database
from worker.backends.process.control_groups import control_group_support

pytest_plugins = [
    "support.google.fixtures",
    "support.process_state",
    "support.servers.accepting",
    "support.servers.azure_server",
    "support.servers.s3_server",
]

# A busy machine takes longer than Hypothesis allows an example by default.
hypothesis.settings.register_profile("untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("untimed")

LAST_PID = Path("/proc/sys/kernel/ns_last_pid")
"""The pid of the newest process; the next one gets the next free number."""


@functools.cache
def find_compose() -> list[str] | None:
    """The words that begin a command of Docker Compose, its plugin or the older program; None if there is none."""
    for words in (["docker", "compose"], ["docker-compose"]):
        if (
            shutil.which(words[0])
            and subprocess.run([*words, "version"], capture_output=True, check=False).returncode == 0
        ):
            return words
    return None


def find_faketime() -> str | None:
    """The library that moves a process's clock; None if it is not installed."""
    found = sorted(str(path) for path in Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    return found[0] if found else None


def can_choose_pids() -> bool:
    """Return whether this user may set the pid that the next process gets."""
    try:
        LAST_PID.write_text(LAST_PID.read_text())
    except OSError:
        return False
    return True


@functools.cache
def find_original_clients() -> Path | None:
    """The folder that the original clients are installed in; None if they are not."""
    look = [str(Path(__file__).parent.parent / ".ci" / "original-clients"), "--look"]
    found = subprocess.run(look, capture_output=True, text=True, check=False)
    return Path(found.stdout.strip()) if found.returncode == 0 and shutil.which("node") else None


REQUIREMENTS = {
    "postgres": (find_binaries, "PostgreSQL's server programs are not installed (apt-get install postgresql)"),
    "sqlite3_program": (lambda: shutil.which("sqlite3"), "SQLite's program is not installed (apt-get install sqlite3)"),
    "redis": (find_redis, "Redis is not installed (apt-get install redis-server)"),
    "pgbouncer": (find_pgbouncer, "PgBouncer is not installed (apt-get install pgbouncer)"),
    "compose_program": (find_compose, "Docker Compose is not installed (apt-get install docker-compose)"),
    "small_disk": (find_mount, "no file system may be mounted here (run the tests as root, or let sudo ask nothing)"),
    "faketime": (find_faketime, "libfaketime is not installed (apt-get install faketime)"),
    "docker_server": (
        lambda: not missing_docker_requirements(),
        f"no containers: {missing_docker_requirements()} (as root: apt-get install docker.io busybox-static iptables)",
    ),
    "control_groups": (
        lambda: control_group_support("auto")[0] is not None,
        f"no control groups: {control_group_support('auto')[1]} (run the tests as root, or in a delegated group)",
    ),
    "last_pid": (can_choose_pids, f"{LAST_PID} cannot be written here (run the tests as root)"),
    "chromium": (find_chromium, "no Chromium is installed (apt-get install chromium)"),
    "wrk": (lambda: shutil.which("wrk"), "wrk is not installed (apt-get install wrk)"),
    "axe_core": (find_axe_core, "axe-core is not installed (apt-get install nodejs npm, then .ci/test-needs)"),
    "azurite": (find_azurite, "Azurite is not installed (apt-get install nodejs npm, then .ci/test-needs)"),
    "original_clients": (
        find_original_clients,
        "the original clients are not installed (apt-get install nodejs npm, then .ci/original-clients)",
    ),
}
"""Requirements of tests, by the fixture that provides them: a function that finds one, and the message if missing."""
REQUIREMENTS |= networks.REQUIREMENTS | slurm_cluster.REQUIREMENTS | {"killable_engine": REQUIREMENTS["docker_server"]}
REQUIREMENTS["trainer_packages"] = (has_default_packages, "no package index has the default packages of jobs")
for _example in EXAMPLES:
    REQUIREMENTS[f"{_example}_packages"] = (
        functools.partial(has_packages_of, _example),
        f"no package index has the requirements of examples/{_example}, or only with CUDA (see UV_FIND_LINKS)",
    )

NEEDS_PRIVILEGES = {
    "docker_server",
    "killable_engine",
    "small_disk",
    "bubblewrap",
    "control_groups",
    "last_pid",
    *networks.REQUIREMENTS,
}
"""Requirements that need rights on the machine: a missing one is reported everywhere, and is never an error."""
_NEEDS_INDEX = {"trainer_packages", *(f"{name}_packages" for name in EXAMPLES)}
"""Requirements that need a package index: likewise."""
_NEEDED_BY_SLOW_TESTS = {"apptainer", "azurite", "slurm", "wrk"}
"""Requirements that only slow tests need: likewise."""
_PROCESSES = {"cli", "deployment", "gcs_simulator", "fuzz_target", "live_server", "make_deployment", "proxy", "service"}
"""Fixtures that start servers or processes, besides those in `NEEDS`."""
_FIXTURE_PARAMETERS = {"postgres": "postgresql", "docker_server": "docker", "bubblewrap": "sandbox", "azurite": "azure"}
_FIXTURE_PARAMETERS |= networks.PARAMETERS | {f"{name}_packages": name for name in (*EXAMPLES, "trainer")}
_FIXTURE_PARAMETERS |= {name: name for name in ("slurm", "apptainer")}
"""Test parameters that stand for a fixture, by fixture."""

_BOTH_DATABASES = ("core/db/", "core/jobs/test_lifecycle.py", "core/jobs/scheduling/test_claims.py", "migrations/")
"""Folders and files whose tests `make test` runs over SQLite and over PostgreSQL; those of others over SQLite."""

_not_run: dict[str, str] = {}


@functools.cache
def _is_here(fixture: str) -> bool:
    find, _ = REQUIREMENTS[fixture]
    return bool(find())


def _missing_requirements(wanted: Collection[str]) -> dict[str, str]:
    return {one: words for one, (_, words) in REQUIREMENTS.items() if one in wanted and not _is_here(one)}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--run-slow", action="store_true", help="run the tests marked slow, too")
    parser.addoption("--keep-seconds", action="store_true", help="keep the seconds of files, so that the longest begin")


def pytest_configure(config: pytest.Config) -> None:
    os.environ.update(PLAIN_JOBS)  # for workers within the test process
    patch = pytest.MonkeyPatch()
    use_light_databases(patch)
    config.add_cleanup(patch.undo)
    config.pluginmanager.register(fault_report, "fault-report")
    config.pluginmanager.register(levels, "levels")
    config.pluginmanager.register(work_units, "work-units")


def pytest_sessionstart() -> None:
    # A shell starts what runs in the background with Ctrl-C ignored, and every child would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if os.environ.get("CI") == "true":
        missing = _missing_requirements(REQUIREMENTS.keys() - NEEDS_PRIVILEGES - _NEEDS_INDEX - _NEEDED_BY_SLOW_TESTS)
        if missing:
            raise pytest.UsageError("; ".join(missing.values()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark levels; deselect slow tests and those whose requirements are missing: not run is not passed."""
    for item in items:
        item.add_marker(_level(item))
        if _is_second_database(item):
            item.add_marker(pytest.mark.slow)
    slow = [] if config.option.run_slow else [item for item in items if item.get_closest_marker("slow")]
    wanting = dict.fromkeys(slow, "slow (make test-all)")
    items[:] = [item for item in items if item not in wanting]
    # An index is only asked for packages that a test needs.
    missing = _missing_requirements({one for one in REQUIREMENTS if any(_requires(item, one) for item in items)})
    wanting |= {item: words for item in items for fixture, words in missing.items() if _requires(item, fixture)}
    items[:] = [item for item in items if item not in wanting]
    config.hook.pytest_deselected(items=list(wanting))
    _not_run.update({item.nodeid: words for item, words in wanting.items()})


def pytest_collection_finish() -> None:
    # Modules and collected tests stay to the end: without this, each full garbage collection goes through them all.
    gc.collect()
    gc.freeze()


def _level(item: pytest.Item) -> str:
    """Return the marker of a test's level, unless its file has one: by its folder, and by what it starts."""
    folder = item.path.relative_to(Path(__file__).parent).parts[0]
    for level in ("faults", "e2e", "integration"):
        if item.get_closest_marker(level) or levels.FOLDER_LEVELS.get(folder) == level:
            return level
    return "integration" if any(_requires(item, fixture) for fixture in [*REQUIREMENTS, *_PROCESSES]) else "unit"


def _is_second_database(item: pytest.Item) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    path = item.path.relative_to(Path(__file__).parent).as_posix()
    chosen = any("database" in mark.args[0] for mark in item.iter_markers("parametrize"))
    return params.get("database") == "postgresql" and not chosen and not path.startswith(_BOTH_DATABASES)


def _requires(item: pytest.Item, fixture: str) -> bool:
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if fixture in getattr(item, "fixturenames", ()):
        return True
    return fixture in _FIXTURE_PARAMETERS and _FIXTURE_PARAMETERS[fixture] in params.values()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):  # one of several test processes: the first one reports for all
        session.config.workeroutput["not_run"] = _not_run


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node) -> None:
    _not_run.update(getattr(node, "workeroutput", {}).get("not_run", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for words in sorted(set(_not_run.values())):
        count = list(_not_run.values()).count(words)
        terminalreporter.write_sep("=", f"NOT RUN: {count} tests: {words}", yellow=True)


@pytest.fixture
def linked_networks() -> None:
    """A machine on which a worker that is root makes networks for its jobs."""


@pytest.fixture
def last_pid() -> Path:
    """The file by which a test chooses the pid of the next process."""
    return LAST_PID


@pytest.fixture(scope="session")
def trainer_packages() -> None:
    """An index that has the default packages."""


@pytest.fixture(scope="session")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A private PostgreSQL server, gone when the run ends."""
    server = PostgresServer(tmp_path_factory.mktemp("postgres"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A private Redis, empty, gone when the test ends."""
    folder = tmp_path / "redis"
    folder.mkdir()
    server = RedisServer(folder)
    server.start()
    yield server
    server.kill()


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """A cluster without accounting, which commands of the test reach."""
    with running_cluster() as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


@pytest.fixture
def slurm_accounting(monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """A cluster with accounting, which commands of the test reach."""
    with running_cluster(accounting=True) as cluster:
        monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
        yield cluster


@pytest.fixture
def small_disk() -> Iterator[Callable[[Path, int], SmallDisk]]:
    """Mounts disks of a few bytes, which are gone when the test ends."""
    disks: list[SmallDisk] = []

    def mount(folder: Path, size: int) -> SmallDisk:
        disks.append(SmallDisk(folder))
        assert disks[-1].mount(size)
        return disks[-1]

    yield mount
    for disk in disks:
        disk.unmount()


@pytest.fixture(scope="session")
def faketime() -> str:
    """The library that moves a process's clock."""
    found = find_faketime()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def docker_server() -> Iterator[PrivateDockerEngine]:
    """A private Docker engine with two small images, gone when the run ends."""
    with running_engine() as server:
        yield server


@pytest.fixture
def collector() -> Iterator[OtlpCollector]:
    """A collector of the traces that a service sends."""
    made = OtlpCollector()
    yield made
    made.stop()


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[Proxy]:
    """A way to PostgreSQL that can be cut."""
    made = Proxy(postgres.socket)
    yield made
    made.close()


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    """One Chromium a test process; each test opens a browser of its own in it."""
    started = Chromium(tmp_path_factory.mktemp("chromium"))
    yield started
    started.close()


@pytest.fixture(scope="session")
def axe_core() -> str:
    """The script that finds faults of pages for people who do not see or point."""
    found = find_axe_core()
    assert found is not None
    return found.read_text()


@pytest.fixture(scope="session")
def original_clients() -> Path:
    """The folder that the original clients are installed in."""
    found = find_original_clients()
    assert found is not None
    return found


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    """A machine on which sandboxes work."""


@pytest.fixture(scope="session")
def control_groups() -> None:
    """A machine on which jobs can be limited by control groups."""


@pytest.fixture(scope="session")
def compose_program() -> list[str]:
    """The words that begin a command of Docker Compose."""
    words = find_compose()
    assert words is not None
    return words


@pytest.fixture(scope="session")
def migrated_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite file, to copy."""
    path = tmp_path_factory.mktemp("migrated") / "gradient.db"
    _migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres: PostgresServer) -> str:
    """Name of a migrated PostgreSQL database, to copy."""
    url = postgres.new_database()
    _migrate(url)
    return str(make_url(url).database)


def _migrate(url: str) -> None:
    database = Database(url)
    migrations.upgrade(database)
    if database.is_sqlite:
        with database.engine.connect() as connection:
            connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty, migrated database of each kind."""
    if request.param == "sqlite":
        url = f"sqlite:///{shutil.copy(request.getfixturevalue('migrated_sqlite'), tmp_path / 'gradient.db')}"
    else:
        postgres = request.getfixturevalue("postgres")
        url = postgres.new_database(request.getfixturevalue("migrated_postgres"))
    database = Database(url)
    yield database
    database.close()


@pytest.fixture
def sqlite_database(tmp_path: Path, migrated_sqlite: Path) -> Iterator[Database]:
    """An empty, migrated SQLite database, where the kind makes no difference."""
    database = Database(f"sqlite:///{shutil.copy(migrated_sqlite, tmp_path / 'gradient.db')}")
    yield database
    database.close()


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return Catalogue.load()


@pytest.fixture
def submit(database: Database, catalogue: Catalogue) -> JobSubmitter:
    return JobSubmitter(database, catalogue)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """A service that is not started yet; whatever a test starts of it is gone afterwards."""
    deployment = Deployment(tmp_path / "home")
    yield deployment
    deployment.stop()
