"""The HTTP application: settings, middleware, error table, routers."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version

from fastapi import Depends, FastAPI
from starlette.concurrency import run_in_threadpool

from core.catalogue.images import ImageCatalogue
from core.catalogue.machine_types import Catalogue
from core.db.database import Database
from core.errors import StoreUnavailable
from core.security.api_keys import ApiKeyCache
from core.security.sessions import Sessions
from core.settings import Settings
from core.storage.artifacts.factory import open_artifacts
from service import dashboard, original
from service.auth.api_keys import require_key_or_session
from service.auth.limits import Limits
from service.auth.sign_ins import SignIns
from service.auth.signing import SIGNING_KEYS, Signer, SigningKeys
from service.deps import OpenStores
from service.http import errors
from service.http.body_limit import BodyLimit
from service.http.middleware import RequestContext, SameSite
from service.http.tracing import Traced
from service.log_stream.registry import Streams
from service.metrics.job_counts import JobCounts
from service.metrics.prometheus import Measured, Measures
from service.presenters.metrics import MetricAnswers
from service.routes import (
    artifacts,
    health,
    images,
    jobs,
    logs,
    machine_types,
    metrics,
    projects,
    prometheus,
    registries,
    secrets,
    tpus,
    workspaces,
)

logger = logging.getLogger(__name__)

_NOUNS = (
    jobs,
    logs,
    artifacts,
    metrics,
    machine_types,
    images,
    projects,
    secrets,
    registries,
    tpus,
    workspaces,
    prometheus,
)
_NOTED_SECONDS = 60
_DESCRIPTION = """Submit jobs, follow them, and fetch what they leave.

Every request but `/health` and `/readiness` carries an API key, as `x-api-key` or `Authorization: Bearer`.
Errors all look like `{"error": {"name", "status", "message", "field"?}}`.
"""


def open_stores(settings: Settings, database: Database, *, wake: Callable[[], None]) -> OpenStores:
    """Open the service's stores.

    Args:
        settings: The process's configuration.
        database: The database, with a schema that this release can run on.
        wake: Called after each commit that wrote to the outbox.
    """
    streams, keys = Streams(settings.limits.streams), ApiKeyCache(database)
    return OpenStores(
        settings=settings,
        database=database,
        catalogue=Catalogue.load(override_path=settings.machines.file),
        images=ImageCatalogue.load(override_path=settings.images.file),
        artifacts=open_artifacts(settings),
        keys=keys,
        sessions=Sessions(database, keys, settings.sign_in),
        sign_ins=SignIns(),
        signer=Signer(SigningKeys(settings.root / SIGNING_KEYS), keys),
        streams=streams,
        limits=Limits(settings.limits),
        job_counts=JobCounts(),
        metrics=MetricAnswers(settings.metrics),
        measures=Measures(streams),
        wake=wake,
    )


def create_app(settings: Settings, *, database: Database, wake: Callable[[], None]) -> FastAPI:
    """Create the application; its open stores are at `app.state.stores`.

    Args:
        settings: The process's configuration.
        database: The database, with a schema that this release can run on; the caller closes it.
        wake: Called after each commit that wrote to the outbox.
    """
    app = FastAPI(
        title="Gradient Jobs",
        version=version("gradient-jobs"),
        description=_DESCRIPTION,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
        lifespan=_lifespan,
        # FastAPI's own spans would contain query strings, and with them sign-in tickets; `Traced` makes ours.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    stores = app.state.stores = open_stores(settings, database, wake=wake)
    errors.install(app)
    original.include(app, beside=[route for noun in _NOUNS for route in noun.router.routes])
    app.add_middleware(SameSite, settings=settings.api)
    app.add_middleware(BodyLimit)
    app.add_middleware(RequestContext)
    app.add_middleware(Traced, keys=stores.keys)
    app.add_middleware(Measured, measures=stores.measures)
    app.include_router(health.router, responses=errors.RESPONSES_TO_ALL)
    for noun in _NOUNS:
        app.include_router(noun.router, dependencies=[Depends(require_key_or_session)], responses=errors.RESPONSES)
    dashboard.mount(app)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    stores: OpenStores = app.state.stores
    noting = asyncio.create_task(_note_use(stores))
    try:
        yield
    finally:
        noting.cancel()
        stores.streams.close()
        await run_in_threadpool(_note, stores)


async def _note_use(stores: OpenStores) -> None:
    with suppress(asyncio.CancelledError):
        while True:
            await asyncio.sleep(_NOTED_SECONDS)
            await run_in_threadpool(_note, stores)


def _note(stores: OpenStores) -> None:
    """Store the times of use of keys and sessions."""
    try:
        stores.keys.flush()
        stores.sessions.flush()
    except StoreUnavailable:
        logger.warning("keys_used_not_noted")
