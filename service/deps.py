"""Dependencies of endpoints, as `Annotated` aliases."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from core.catalogue.images import ImageCatalogue
from core.catalogue.machine_types import Catalogue, MachineType
from core.security.api_keys import ApiKeyCache
from core.security.sessions import Sessions
from core.storage import stores
from service.auth.limits import Limits
from service.auth.sign_ins import SignIns
from service.auth.signing import Signer
from service.log_stream.registry import Streams
from service.metrics.job_counts import JobCounts
from service.metrics.prometheus import Measures
from service.presenters.metrics import MetricAnswers


@dataclass(kw_only=True)
class OpenStores(stores.Stores):
    """The application's state: settings, database, stores and caches, opened once per process.

    Attributes:
        catalogue: The machine types.
        images: The short names of images.
        keys: API keys, cached to avoid a query for each request.
        sessions: Browser sessions.
        sign_ins: Checks passwords.
        signer: Signs expiring links and tokens for holders of keys.
        streams: The logs being followed now.
        limits: The limits per key.
        job_counts: Numbers of jobs by project.
        metrics: Cached responses with jobs' metrics.
        measures: This process's own metrics, for Prometheus.
        wake: Wakes the dispatcher; called after the commit of a transaction that wrote to the outbox.
    """

    catalogue: Catalogue
    images: ImageCatalogue
    keys: ApiKeyCache
    sessions: Sessions
    sign_ins: SignIns
    signer: Signer
    streams: Streams
    limits: Limits
    job_counts: JobCounts
    metrics: MetricAnswers
    measures: Measures
    wake: Callable[[], None]

    def backend_for(self, machine: MachineType) -> str:
        """Return the backend that runs jobs on this machine type."""
        return self.settings.backend_of(machine.backend)


async def _stores(connection: HTTPConnection) -> OpenStores:
    return cast("OpenStores", connection.app.state.stores)


Stores = Annotated[OpenStores, Depends(_stores)]


async def _request_id(connection: HTTPConnection) -> str:
    return cast("str", connection.state.request_id)


RequestId = Annotated[str, Depends(_request_id)]
"""The request's id, set by `service.http.middleware.RequestContext` or taken over from an authenticated client."""


def _reading(stores: Stores) -> Iterator[Session]:
    with stores.database.read() as session:
        yield session


def _writing(stores: Stores) -> Iterator[Session]:
    with stores.database.write() as session:
        yield session


# With the default scope, the code after `yield` runs after the response was sent: if the commit failed, the client
# would still have its 201.
Reading = Annotated[Session, Depends(_reading, scope="function")]
Writing = Annotated[Session, Depends(_writing, scope="function")]
