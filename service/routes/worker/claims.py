"""Claims of workers on other hosts, made beside the database: each costs the worker one round trip.

A claim holds the lock of all claims. Statement by statement over a slow network it would keep every other host waiting.
"""

from collections.abc import Collection
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from sqlalchemy import select

from core.catalogue.backends import OFFERS
from core.db.models.jobs import Worker
from core.errors import SpecInvalid
from core.jobs import queries
from core.jobs.costs import limits
from core.jobs.scheduling import claims
from core.jobs.scheduling.claims import WorkerOffer
from core.jobs.scheduling.port_allocations import PortRange
from service.deps import AppStateDep
from service.http.routing import Router
from service.routes.worker.files import Body, TokenDep, WorkerDep

router = Router(prefix="/worker", include_in_schema=False)

_Name = Annotated[str, Field(max_length=255, pattern=r"^[^\x00]*$")]
_Names = Annotated[list[_Name], Field(max_length=1000)]
_MAX_MEMORY_MB = 2**31 - 1


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Ports(_Request):
    first: int = Field(ge=1, le=65_536)
    last: int = Field(ge=0, le=65_535)
    address: _Name


class _Offer(_Request):
    """The fields of `WorkerOffer`, as a worker sends them."""

    worker: _Name
    host: _Name
    backends: _Names
    machine_types: _Names | None
    gpus: _Names | None
    cpus: float | None = Field(ge=0, le=1e6, allow_inf_nan=False)
    memory_mb: int | None = Field(ge=0, le=_MAX_MEMORY_MB)
    ports: _Ports
    refusal: str | None = Field(max_length=10_000)
    nodes_address: _Name | None

    def of(self, worker: str) -> WorkerOffer:
        return WorkerOffer(
            worker,
            self.host,
            tuple(dict.fromkeys(self.backends)),
            machine_types=None if self.machine_types is None else tuple(self.machine_types),
            gpus=None if self.gpus is None else tuple(self.gpus),
            cpus=self.cpus,
            memory_mb=self.memory_mb,
            ports=PortRange(self.ports.first, self.ports.last, self.ports.address),
            nodes_address=self.nodes_address,
        )


@router.post("/claims")
def claim(app_state: AppStateDep, token: TokenDep, _worker: WorkerDep, body: Body) -> dict[str, str | None]:
    """Claim the next job that fits the worker's offer; return its id, or null.

    A token that is revoked meanwhile is refused at once.
    """
    worker = app_state.worker_tokens.authenticate(token, cached=False)
    try:
        offer = _Offer.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        raise SpecInvalid(f"The worker's offer is malformed: {where}: {first['msg']}.") from error
    _require(offer.backends, OFFERS, "backend")
    _require(offer.machine_types or (), {machine.name for machine in app_state.catalogue}, "machine type")
    with app_state.database.write() as session:
        if session.scalar(select(Worker.host).where(Worker.name == worker)) != offer.host:
            raise SpecInvalid(f"Worker {worker!r} is not registered on host {offer.host!r}.")
        job = claims.claim(session, offer.of(worker))
        return {"job": None if job is None else job.id}


@router.post("/jobs/{job_id}/extension")
def extend(app_state: AppStateDep, worker: WorkerDep, job_id: str) -> dict[str, bool]:
    """Extend the share of a ceiling or a budget that a job of the worker has used up, if more is left."""
    with app_state.database.write() as session:
        job = queries.get_row(session, job_id)
        extended = None if job is None or job.worker != worker else limits.extend(session, job)
        return {"extended": extended is not None}


def _require(names: Collection[str], existing: Collection[str], what: str) -> None:
    unknown = next((name for name in names if name not in existing), None)
    if unknown is not None:
        raise SpecInvalid(f"The worker's offer names the {what} {unknown[:100]!r}, which this service does not know.")
