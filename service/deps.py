"""What an endpoint can ask for, as `Annotated` aliases: its signature reads as a list of needs."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, cast

from fastapi import Depends
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from core.artifacts import ArtifactStore
from core.db import Database
from core.images import ImageCatalogue
from core.joblogs import JobLogs
from core.keys import KeyRing
from core.machines import Catalogue, MachineType
from core.sessions import Sessions
from core.settings import Settings
from core.workspaces import WorkspaceStore
from service.job_counts import JobCounts
from service.limits import Limits
from service.metric_answers import MetricAnswers
from service.prometheus import Measures
from service.signing import Signer
from service.streams import Streams
from service.throttle import SignIns


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenStores:
    """Everything the service reads and writes, opened once per process.

    Attributes:
        settings: The process's configuration.
        database: The truth.
        catalogue: The machine types.
        images: The short names of images.
        workspaces: Uploaded archives.
        logs: What jobs print.
        artifacts: What jobs leave.
        keys: API keys, recognised without a query each time.
        sessions: Browser sessions.
        sign_ins: Checks passwords.
        signer: Signs what the service gives out to holders of keys for a while, such as links.
        streams: The logs being followed now.
        limits: What one key may use.
        job_counts: Numbers of jobs by project.
        metrics: Answers about what jobs measured.
        measures: What this process counts about itself.
        wake: Says that a transaction left something in the outbox; called after its commit.
    """

    settings: Settings
    database: Database
    catalogue: Catalogue
    images: ImageCatalogue
    workspaces: WorkspaceStore
    logs: JobLogs
    artifacts: ArtifactStore
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
        """The backend that runs jobs on this machine type."""
        return self.settings.backend_of(machine.backend)


async def _stores(connection: HTTPConnection) -> OpenStores:
    return cast("OpenStores", connection.app.state.stores)


Stores = Annotated[OpenStores, Depends(_stores)]


async def _request_id(connection: HTTPConnection) -> str:
    return cast("str", connection.state.request_id)


RequestId = Annotated[str, Depends(_request_id)]
"""The request's id, as `service.middleware.RequestContext` gave it."""


def _reading(stores: Stores) -> Iterator[Session]:
    with stores.database.read() as session:
        yield session


def _writing(stores: Stores) -> Iterator[Session]:
    with stores.database.write() as session:
        yield session


# With the default scope the part after `yield` runs when the answer is already sent: a commit that fails would
# leave the client with its 201.
Reading = Annotated[Session, Depends(_reading, scope="function")]
Writing = Annotated[Session, Depends(_writing, scope="function")]
