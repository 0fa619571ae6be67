"""TPUs that are billed or about to be."""

from fastapi import APIRouter
from pydantic import Field
from sqlalchemy import select

from core.db.database import now
from core.db.models.jobs import Job
from core.jobs import cloud_resources
from core.jobs.cloud_resources import CloudResource
from service.deps import ReadSession
from service.schemas.base import View
from service.schemas.jobs import Time

router = APIRouter(prefix="/tpus", tags=["tpus"])


class TpuView(View):
    """A TPU that was asked for and is not known to be gone."""

    name: str = Field(description="its id in its zone")
    zone: str
    provisioning: str = Field(
        description="queued: a queued resource and its node; node: made at once; pool: it was there before"
    )
    state: str = Field(description="as the cloud names it; intended: about to be asked for; deleting: not gone yet")
    health: str | None = Field(description="as the cloud names it; null: not known")
    detail: str | None
    job_id: str = Field(description="whose it is")
    job_name: str
    attempt: int
    machine_type: str
    simulated: bool
    host: str = Field(description="machine whose worker asked for it")
    requested_at: Time
    seen_at: Time | None = Field(description="when the cloud last said something of it")
    billed_at: Time | None = Field(description="from when on it bills; null: not yet")
    price_per_hour: float
    cost: float = Field(description="US dollars so far")


class Tpus(View):
    """Every TPU, the oldest first."""

    tpus: list[TpuView]


@router.get("")
def list_tpus(session: ReadSession) -> Tpus:
    """Every TPU that was asked for and is not known to be gone: its state, health, job, and cost so far."""
    found = cloud_resources.list_open(session)
    wanted = select(Job).where(Job.id.in_([one.job_id for one in found]))
    jobs = {job.id: job for job in session.scalars(wanted)} if found else {}
    current = session.scalars(select(now())).one()
    return Tpus(
        tpus=[_tpu_view(one, jobs[one.job_id], cloud_resources.resource_billed_seconds(one, current)) for one in found]
    )


def _tpu_view(resource: CloudResource, job: Job, seconds: float) -> TpuView:
    zone, _, name = resource.name.partition("/")
    return TpuView(
        name=name,
        zone=zone,
        provisioning=resource.kind.removeprefix("tpu_"),
        state=resource.state,
        health=resource.health,
        detail=resource.detail,
        job_id=job.id,
        job_name=job.shown_name,
        attempt=resource.attempt,
        machine_type=job.machine_type,
        simulated=job.simulated,
        host=resource.host,
        requested_at=resource.intended_at,
        seen_at=resource.seen_at,
        billed_at=resource.billed_at,
        price_per_hour=job.price_per_hour,
        cost=round(seconds * job.price_per_hour / 3600, 6),
    )
