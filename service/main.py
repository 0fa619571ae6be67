"""The HTTP application: settings, middleware, error table, routers."""

import asyncio
import logging
import math
import os
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

from fastapi import FastAPI
from starlette.exceptions import HTTPException

from core.catalogue.images import ImageCatalogue
from core.catalogue.machine_types import Catalogue
from core.db.database import Database
from core.errors import MachineTypeUnknown, SpecInvalid, StoreUnavailable
from core.jobs.scheduling.shared_repairs import SharedRepairs
from core.jobs.tracking.metric_limits import MetricLimits
from core.release import release_version
from core.security import job_rights
from core.security.api_keys import ApiKeyCache
from core.security.sessions import Sessions
from core.settings import Settings
from core.storage.artifacts.factory import open_artifacts
from service import dashboard, original
from service.app_state import AppState
from service.auth import user_checks
from service.auth.per_key_limits import Limits
from service.auth.sign_in_throttle import SignInLimiter
from service.auth.signing import SIGNING_KEYS, Signer, SigningKeys
from service.http import errors
from service.http.lanes import require_lane
from service.http.middleware import Application
from service.log_stream.registry import MAX_STREAMS, StreamRegistry
from service.monitoring.project_usage import JobCounts
from service.monitoring.service_metrics import ServiceMetrics
from service.notifications import sender
from service.notifications.sender import Sender
from service.presenters.outputs.metrics_cache import JobMetricsCache
from service.routes import (
    artifacts,
    catalogue,
    comparisons,
    costs,
    exec_sessions,
    jobs,
    logs,
    metrics,
    notifications,
    projects,
    storage,
    tpus,
    workspaces,
)
from service.routes.credentials import keys, registries, secrets, ssh_keys
from service.routes.server import agent_tools, client_wheel, health, openapi_document, prometheus, workers
from service.routes.templates import schedules, sweeps
from service.routes.worker import claims as worker_claims
from service.routes.worker import files, tunnel
from service.ssh import endpoint
from service.submission.schedules import run_due
from service.submission.sweeps import advance_all
from service.tensorboard import routes as tensorboards

logger = logging.getLogger(__name__)

ROUTE_MODULES = (
    jobs,
    logs,
    artifacts,
    metrics,
    comparisons,
    schedules,
    sweeps,
    catalogue,
    projects,
    secrets,
    registries,
    keys,
    ssh_keys,
    notifications,
    tpus,
    costs,
    workspaces,
    storage,
    prometheus,
    exec_sessions,
    workers,
    tensorboards,
)
"""The routes of the API that need a key or a session."""
_FLUSH_SECONDS = 60
_SCHEDULE_SECONDS = 5  # latest time after which a schedule's job is created
_CHECK_SECONDS = 5.0  # latest time after which a check that is due begins
_RECORD_SECONDS = 1.0  # that refusals and reads wait for, so that many share a transaction
_SWEEP_SECONDS = 0.5  # time between two rounds of a sweep
_DESCRIPTION = """Submit jobs, follow them, and download their artifacts.

Every request except `/health` and `/readiness` needs an API key, as `x-api-key` or `Authorization: Bearer`.
Errors all look like `{"error": {"name", "status", "message", "field"?}}`.
"""


def create_app_state(settings: Settings, database: Database, *, wake: Callable[[], None]) -> AppState:
    """Open the service's stores. `wake`: called after each commit that wrote to the outbox."""
    streams = StreamRegistry(settings.limits.streams, math.ceil(MAX_STREAMS / settings.api.processes))
    keys = ApiKeyCache(database)
    app_state = AppState(
        settings=settings,
        database=database,
        catalogue=_load_catalogue(settings),
        images=ImageCatalogue.load(
            override_path=settings.images.file, default_packages=settings.environments.default == "trainer"
        ),
        artifacts=open_artifacts(settings),
        keys=keys,
        sessions=Sessions(database, keys, settings.sign_in),
        sign_ins=SignInLimiter(processes=settings.api.processes),
        signer=Signer(SigningKeys(settings.root / SIGNING_KEYS), keys),
        streams=streams,
        limits=Limits(settings.limits, settings.api.processes),
        job_counts=JobCounts(),
        metrics=JobMetricsCache(MetricLimits()),
        service_metrics=ServiceMetrics(streams),
        wake=wake,
    )
    app_state.siblings.answers |= {
        "metrics": partial(prometheus.collect_metrics, app_state),
        "board": partial(tensorboards.start_board, app_state),
    }
    return app_state


def _load_catalogue(settings: Settings) -> Catalogue:
    catalogue = Catalogue.offered(settings)
    try:
        catalogue.get(settings.default_machine)
    except MachineTypeUnknown as error:
        raise SpecInvalid(f"GRADIENT_MACHINES__DEFAULT: {error.message}") from error
    return catalogue


def create_app(settings: Settings, *, database: Database, wake: Callable[[], None]) -> Application:
    """Create the application; its state is at `app.state.app_state`."""
    app = Application(
        title="Gradient Jobs",
        version=release_version(),
        description=_DESCRIPTION,
        redirect_slashes=False,
        openapi_url=None,  # see `openapi_document`
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        # FastAPI's spans would contain query strings, and with them sign-in tickets; see `TracingMiddleware`.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    database.check_thread = require_lane
    app.state.app_state = create_app_state(settings, database, wake=wake)
    errors.install_error_handlers(app)
    # Their routes themselves: FastAPI tries those of an included router twice. First those that many clients wait for.
    for module in (health, *ROUTE_MODULES):
        app.router.routes += module.router.routes
    app.include_router(client_wheel.router)
    app.include_router(agent_tools.router)
    app.include_router(files.router)
    app.include_router(worker_claims.router)
    app.include_router(tunnel.router)
    original.include(app, main_routes=[route for module in ROUTE_MODULES for route in module.router.routes])
    dashboard.mount(app)
    openapi_document.install(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    app_state: AppState = app.state.app_state
    loops = [
        asyncio.create_task(loop(app_state))
        for loop in (
            *(_flush_key_usage_loop, _record_loop, _check_users_loop, _run_schedules_loop, _advance_sweeps_loop),
            *(_repair_loop, _notify_loop),
        )
    ]
    loops.append(asyncio.create_task(endpoint.serve(app_state)))
    app_state.siblings.start()
    try:
        yield
    finally:
        for task in loops:
            task.cancel()
        app_state.siblings.stop()
        app_state.streams.close()
        await app_state.boards.close()
        await app_state.lanes.changing.run(_flush_key_usage, app_state)
        await app_state.lanes.changing.run(_try, app_state, lambda _app_state: app_state.record.write())


async def _flush_key_usage_loop(app_state: AppState) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            await app_state.lanes.changing.run(_flush_key_usage, app_state)
            await asyncio.sleep(_FLUSH_SECONDS)


async def _check_users_loop(app_state: AppState) -> None:
    if app_state.provider.name is not None:
        await _repeat(
            app_state, user_checks.check_due, pause=0, idle=min(_CHECK_SECONDS, app_state.settings.oidc.check_seconds)
        )


async def _record_loop(app_state: AppState) -> None:
    await _repeat(app_state, lambda _app_state: app_state.record.write(), pause=_RECORD_SECONDS, idle=_RECORD_SECONDS)


async def _run_schedules_loop(app_state: AppState) -> None:
    await _repeat(app_state, run_due, pause=0)


async def _advance_sweeps_loop(app_state: AppState) -> None:
    await _repeat(app_state, advance_all, pause=_SWEEP_SECONDS)


async def _notify_loop(app_state: AppState) -> None:
    await _repeat(app_state, Sender().advance, pause=0, idle=sender.POLL_SECONDS)


async def _repair_loop(app_state: AppState) -> None:
    holder = f"{socket.gethostname()} {os.getpid()}"
    repairs = SharedRepairs(
        app_state.database, app_state.settings, lease="service", holder=holder, host=None, on_lost=lambda _job: None
    )
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(app_state.settings.worker.sweep_seconds)
            with suppress(HTTPException):  # too many requests wait for a thread
                await app_state.lanes.changing.run(_repair, app_state, repairs)


def _repair(app_state: AppState, repairs: SharedRepairs) -> None:
    try:
        if any(repairs.run().values()):
            app_state.wake()
        if repairs.hosts_may_be_lost():
            sender.collect_states(app_state)
    except StoreUnavailable:
        repairs.defer_lost_detection()
    except Exception:
        logger.exception("repairs_failed")


async def _repeat(
    app_state: AppState, advance: Callable[[AppState], int], *, pause: float, idle: float = _SCHEDULE_SECONDS
) -> None:
    """Call a function again and again, `pause` seconds after a call that had something to do, or else `idle`."""
    with suppress(asyncio.CancelledError):
        while True:
            busy = 0
            with suppress(HTTPException):  # too many requests wait for a thread
                busy = await app_state.lanes.changing.run(_try, app_state, advance)
            await asyncio.sleep(pause if busy else idle)


def _try(app_state: AppState, advance: Callable[[AppState], int]) -> int:
    try:
        return advance(app_state)
    except StoreUnavailable:
        pass  # it is logged; the next round tries again
    except Exception:
        logger.exception("loop_failed")
    return 0


def _flush_key_usage(app_state: AppState) -> None:
    """Store the times of use of keys and sessions, and whose keys are administrators'."""
    try:
        with app_state.database.write() as session:
            job_rights.record_administrators(session, app_state.settings.sign_in.administrators)
        app_state.keys.flush()
        app_state.sessions.flush()
        app_state.record.remove_old()
    except StoreUnavailable:
        logger.warning("key_use_not_recorded")
