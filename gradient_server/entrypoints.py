"""The service's processes (API, worker, both). Each imports only the modules it needs."""

import shlex
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from core.catalogue.machine_types import Catalogue
from core.db.connection_watchdog import ConnectionWatchdog
from core.db.database import Database
from core.errors import SpecInvalid
from core.monitoring.logging import announce
from core.notify.messages import WakeMessage
from core.notify.wakeup_file import WakeupFile
from core.security import one_time_tokens
from core.security.one_time_tokens import Purpose
from core.settings import Settings
from core.system import garbage_collection
from core.system.canonical_host import canonical_host
from core.system.filesystem import make_private
from core.system.processes import keep_ignored_signals_from_children
from gradient_server import simulator
from gradient_server.api_port import ApiPort, bind_port, listen
from gradient_server.api_processes import ApiProcess, run_process, run_processes
from gradient_server.home import locked_home, publish_address, require_home
from gradient_server.job_ports_address import are_ports_at_dashboard
from gradient_server.local_key import ensure_local_key
from gradient_server.schema_upgrade import prepare_schema
from gradient_server.startup_wait import wait_until_ready
from gradient_server.tracing import export_spans

if TYPE_CHECKING:
    from gradient_server.checks.finding import Finding
    from worker.context import WorkerContext
    from worker.supervisor import Supervisor

_SINGLE_HOST = "this machine"

_Worker = Callable[[Settings, Database], AbstractContextManager[str]]
"""Runs the worker beside the API during a block, for which there are lines about its machines."""


def up(settings: Settings, name: str | None, why_backend: str = "", arguments: Sequence[str] = ()) -> int:
    """Run API and worker until SIGTERM or Ctrl-C; jobs keep running.

    Args:
        name: Name of the worker; None: this machine's.
        why_backend: Reason for the backend of its jobs, to print when it is ready.
        arguments: Those of this program, to start it again; without them it is not supervised.
    """
    worker = partial(_worker_thread, name=name, why_backend=why_backend)
    return _run_api(settings, worker, migrate=True, arguments=arguments)


def up_with_tpu_simulator(settings: Settings, name: str | None, why_backend: str = "") -> int:
    """Run API and worker with a simulated cloud for TPU jobs, which ends with the process."""
    if settings.api.processes > 1:
        raise SpecInvalid(
            "--tpu-simulator needs the API in one process. Leave out --processes (GRADIENT_API__PROCESSES), or "
            "start `gradient-server tpu-simulator` separately and use the settings that it prints.",
            field="processes",
        )
    cloud = simulator.load_simulated_cloud()().start()
    try:
        return up(cloud.settings(settings), name, why_backend)  # not supervised: a fork would not have its threads
    finally:
        cloud.stop()


def api(settings: Settings) -> int:
    with locked_home(settings, shared=True):
        return _run_api(settings, lambda _settings, _database: nullcontext(""))


def _run_api(settings: Settings, worker: _Worker, *, migrate: bool = False, arguments: Sequence[str] = ()) -> int:
    """Run the API in this process, or in others under a supervisor."""
    port = bind_port(settings)
    require_separate_ports_host(port.settings)  # which may have the address of a socket that it was given
    run = partial(_run_api_process, port=port, worker=worker, migrate=migrate)
    if settings.api.processes > 1:
        with garbage_collection.paused():
            import_module("service.main")  # loaded once, for all of them
        return run_processes(settings.api.processes, run)
    if arguments and not port.kept:
        return run_process(port.socket, [sys.executable, "-P", "-m", "gradient_server", *arguments], run)
    return run(ApiProcess(0, (), lambda: None))


def _run_api_process(process: ApiProcess, port: ApiPort, worker: _Worker, *, migrate: bool) -> int:
    settings = port.settings
    with export_spans(settings.tracing):
        database = _open_database_when_ready(settings, migrate=migrate and process.is_first)
        ConnectionWatchdog(database)
        try:
            with worker(settings, database) if process.is_first else nullcontext("") as machines:
                _serve(process, port, database, machines)
        finally:
            database.close()
    return 0


@contextmanager
def _worker_thread(settings: Settings, database: Database, name: str | None, why_backend: str) -> Iterator[str]:
    """Run a worker during the block, for which there are lines about its machines."""
    _, supervisor = _create_supervisor(settings, database, name)
    thread = threading.Thread(target=supervisor.run, name="supervisor")
    thread.start()
    try:
        yield _describe_machines(settings, why_backend)
    finally:
        supervisor.stop()
        thread.join()


def worker(settings: Settings, name: str | None) -> int:
    """Run only a worker until SIGTERM or Ctrl-C; its jobs keep running and are adopted by the next one."""
    require_separate_ports_host(settings)
    if settings.worker.service_url is not None:
        link = import_module("worker.service_link.link").ServiceLink.of(settings.worker.service_url, settings)
        link.check(name or socket.gethostname())  # first: whose token is revoked has no database either
    with export_spans(settings.tracing):
        report = import_module("worker.start_failure").report
        database = _open_database_when_ready(settings, create=False, report=partial(report, name))
        ConnectionWatchdog(database)
        host, supervisor = _create_supervisor(settings, database, name)
        if settings.queue.broker_url is None:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, lambda *_: supervisor.stop())
        announce(f"Worker {name or socket.gethostname()} is ready. Ctrl-C stops it; its jobs keep running.")
        code = 0
        if settings.queue.broker_url is not None:
            code = import_module("worker.celery.worker").run(
                settings.queue.broker_url, host, supervisor, _local_notifier(settings)
            )
        else:
            supervisor.run()
        database.close()
        if supervisor.refusal is not None:
            raise supervisor.refusal
        return code


def migrate(settings: Settings) -> int:
    from core.db import migrations

    database = _open_database(settings, create=True)
    migrations.upgrade(database)
    require_home(settings, database, mark=True)
    if settings.database.worker_url is not None:
        from core.db import worker_role

        announce(f"Workers connect as {worker_role.create(database, settings.database.worker_url)!r}.")
    database.close()
    announce("The database is up to date.")
    return 0


def require_separate_ports_host(settings: Settings) -> None:
    """Require that links to jobs' ports lead to another host name than the dashboard's.

    Browsers send a cookie to every port of a host name, so a job there would receive its visitors' sessions.
    """
    if canonical_host(settings.ports_host) == settings.dashboard_host:
        raise SpecInvalid(
            f"Links to jobs' ports would point to {settings.ports_host}, the dashboard's host name, so browsers "
            "would send the dashboard's session to the jobs. Set GRADIENT_WORKER__ADDRESS (or "
            "GRADIENT_PORTS__BIND) to another name or address of this machine, or GRADIENT_API__PUBLIC_URL to "
            "another name of the dashboard.",
            field="worker.address",
        )
    # A cookie limited to https is never sent to a job: a job has no certificate for that name.
    if not settings.public_url.lower().startswith("https://") and are_ports_at_dashboard(settings):
        raise SpecInvalid(
            f"Jobs' ports would be opened at {settings.ports.bind}, and therefore under the dashboard's host name, "
            f"{settings.dashboard_host}: a job's page could direct a browser there, which would send the "
            "dashboard's session to the job. Set GRADIENT_PORTS__BIND to one address of this machine that this "
            "name does not resolve to, or put a TLS proxy in front of the dashboard and set "
            "GRADIENT_API__PUBLIC_URL to its URL.",
            field="ports.bind",
        )


def _open_database(settings: Settings, *, create: bool) -> Database:
    make_private(settings.root, settings.sqlite_file)
    return Database.of(settings, create=create)


def _open_database_when_ready(
    settings: Settings,
    *,
    migrate: bool = False,
    create: bool = True,
    report: Callable[[str], None] = lambda _: None,
) -> Database:
    """Open the database once it answers; `report` is told what it waits for.

    `create`: create what is missing of it, and mark GRADIENT_HOME as the one that it belongs to.
    """

    def prepare() -> Database:
        database = _open_database(settings, create=create)
        prepare_schema(database, migrate=migrate)
        if create or settings.worker.service_url is None:  # else a worker has a home of its own
            require_home(settings, database, mark=create or database.is_sqlite)
        return database

    return wait_until_ready(settings, prepare, report, create=create)


def _create_supervisor(settings: Settings, database: Database, name: str | None) -> "tuple[WorkerContext, Supervisor]":
    with garbage_collection.paused():
        from worker.context import WorkerContext
        from worker.supervisor import Supervisor

    keep_ignored_signals_from_children()
    hostname = socket.gethostname()
    # With SQLite there is only one machine, so a fixed name is used: a laptop's name changes with its network.
    host = settings.worker.host or (_SINGLE_HOST if database.is_sqlite else hostname)
    opened = WorkerContext.open(settings, database, worker_name=name or hostname, hostname=host)
    return opened, Supervisor(opened, _local_notifier(settings))


def _local_notifier(settings: Settings) -> WakeupFile:
    return WakeupFile(settings.root / "wakeup")


def _broker_publisher(settings: Settings) -> Callable[[Sequence[WakeMessage]], None] | None:
    """Return the function that notifies workers through the broker, if there is one. Only then Celery is imported."""
    if settings.queue.broker_url is None:
        return None
    publish: Callable[[Sequence[WakeMessage]], None] = (
        import_module("core.notify.celery_app").Publisher(settings.queue.broker_url).publish_wake
    )
    return publish


def _serve(process: ApiProcess, port: ApiPort, database: Database, machines: str) -> None:
    """Serve the API until a signal; `machines` are lines about this host's, to print when it is ready."""
    key_id = _open_port(port, database)
    settings = _with_administrator(port.settings.of_one_process(), key_id)
    with garbage_collection.paused():
        from core.notify.outbox_dispatcher import Dispatcher
        from service.http.server import Server
        from service.main import create_app

        dispatcher = Dispatcher(database, _local_notifier(settings).notify, _broker_publisher(settings))
        dispatcher.start()
        app = create_app(settings, database=database, wake=dispatcher.wake)
    app.state.app_state.siblings.join(process.number, process.channels)
    app.state.run_checks = lambda: _run_checks(settings)
    server = Server(app)
    for number in (signal.SIGTERM, signal.SIGINT):
        # Set before uvicorn installs its handlers. After its shutdown uvicorn raises the signal again, which must not
        # end the process before the rest is closed.
        signal.signal(number, server.handle_exit)
    if process.is_first and process.ready is not None:
        publish_address(settings)
        _announce(settings, _issue_ticket(settings, database, key_id), machines)
        process.ready()
    try:
        server.run(sockets=[port.socket])
    finally:
        dispatcher.stop()


def _issue_ticket(settings: Settings, database: Database, key_id: str) -> str:
    def issue() -> str:
        with database.write() as session:
            return one_time_tokens.issue(session, Purpose.TICKET, key_id)

    return wait_until_ready(settings, issue)


def _open_port(port: ApiPort, database: Database) -> str:
    """Accept connections; return the id of the key for this machine's own clients.

    Its file is written once everything else has started, so that a failed start changes nothing, and before the port
    accepts connections: a client that connects at once must find it.
    """
    settings = port.settings
    write_key = partial(ensure_local_key, settings.root / "cli.json", settings.public_url, database)
    key_id = wait_until_ready(settings, write_key)
    listen(port.socket)
    return key_id


def _run_checks(settings: Settings) -> "list[Finding]":
    from gradient_server.commands import doctor

    return doctor.run_checks(settings)


def _with_administrator(settings: Settings, key_id: str) -> Settings:
    """Return the settings with one more administrator: whoever can read this machine's key may do everything."""
    administrators = settings.sign_in.administrators
    return settings.model_copy(
        update={"sign_in": settings.sign_in.model_copy(update={"administrators": [*administrators, key_id]})}
    )


def _describe_machines(settings: Settings, why_backend: str) -> str:
    """Return the lines about the machines of a server that runs a worker itself."""
    from worker.backends.process.control_groups import control_group_support
    from worker.backends.process.job_sandbox import reason_without_sandbox

    if settings.slurm.enabled:
        names = [machine.name for machine in Catalogue.offered(settings) if machine.backend == "slurm"]
        return f"\n  Machines   of the Slurm cluster: {', '.join(names)}"
    backend = "process" if settings.machines.simulate else "docker"
    lines = f"\n  Backend    {backend}" + (f" ({why_backend})" if why_backend else "")
    if settings.machines.simulate:
        host = f"this computer as {settings.machines.host!r}; " if settings.machines.host else ""
        lines += f"\n  Machines   {host}every other type is simulated on its CPU"
        if reason_without_sandbox(settings) is None:
            lines += ", each job in a sandbox"
        else:
            lines += ", as your user, without isolation;\n             submit only programs that you trust"
            if settings.process.sandbox == "auto":
                lines += ", and no jobs at all once there is a second API key"
        groups, why = control_group_support(settings.process.cgroups)
        limited = f"control groups, version {groups.version}" if groups else f"CPU affinity and sampled memory ({why})"
        lines += f"\n  Limits     {limited}"
    if settings.tpu.simulator_address is not None:
        lines += "\n  TPUs       simulated: API, bucket and device"
    return lines


def _announce(settings: Settings, ticket: str, machines: str) -> None:
    url = settings.public_url
    # A client in another terminal finds the server's key by the same variable.
    machine = settings.default_machine if settings.slurm.enabled else "CPU"
    home = f"GRADIENT_HOME={shlex.quote(str(settings.root))} " if settings.root != _default_root() else ""
    announce(
        f"Gradient Jobs is ready.\n"
        f"  Dashboard  {url}/\n"
        f"  Sign in    {url}/ui/login?ticket={ticket} (once, within {one_time_tokens.TTL_SECONDS // 60} minutes)\n"
        f"  Submit     {home}gradient-cli jobs create --machineType {machine} --command 'python main.py'\n"
        f"  Data       {settings.root}{machines}\n"
        f"Ctrl-C stops the service; jobs keep running and are adopted at the next start."
    )


def _default_root() -> Path:
    """Return the folder of all data where no setting names one, in which clients look for the key."""
    default: Path = Settings.model_fields["home"].default
    return default.expanduser().absolute()
