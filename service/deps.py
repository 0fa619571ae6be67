"""Dependencies of endpoints, as `Annotated` aliases."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

import core.stores
from core.images import ImageCatalogue
from core.keys import KeyRing
from core.machines import Catalogue, MachineType
from core.sessions import Sessions
from service.job_counts import JobCounts
from service.limits import Limits
from service.metric_answers import MetricAnswers
from service.prometheus import Measures
from service.signing import Signer
from service.streams import Streams
from service.throttle import SignIns


@dataclass(kw_only=True)
class OpenStores(core.stores.Stores):
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
    keys: KeyRing
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
"""The request's id, set by `service.middleware.RequestContext` or taken over from an authenticated client."""


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
