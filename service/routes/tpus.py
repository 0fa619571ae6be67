from datetime import timedelta

from pydantic import Field
from sqlalchemy import select

from core.db.database import now
from core.db.models.jobs import Job
from core.jobs import cloud_resources
from core.jobs.cloud_resources import CloudResource
from service.auth.authentication import SearchSlot
from service.deps import ReadSession
from service.http.routing import api_router
from service.schemas.base import Time, View

router = api_router(prefix="/tpus", tags=["tpus"])

_TOTAL_DAYS = 30


class TpuView(View):
    """A TPU that was requested and is not known to be deleted."""

    name: str = Field(description="id in its zone")
    zone: str
    provisioning: str = Field(
        description="queued: a queued resource and its node; node: created directly; pool: an existing node"
    )
    state: str = Field(
        description="the cloud's name of the state; intended: not requested yet; deleting: not deleted yet"
    )
    health: str | None = Field(description="the cloud's name of the health; null: not known")
    detail: str | None
    job_id: str = Field(description="job that owns it")
    job_name: str
    attempt: int
    machine_type: str
    simulated: bool
    host: str = Field(description="machine whose worker requested it")
    requested_at: Time
    seen_at: Time | None = Field(description="when the cloud last reported it")
    billed_at: Time | None = Field(description="when billing started; null: not billed yet")
    price_per_hour: float = Field(description="US dollars; of spot capacity, if it is that and its price is known")
    cost: float = Field(description="US dollars so far")


class Tpus(View):
    """The TPUs, oldest first."""

    tpus: list[TpuView]
    refusal: str | None = Field(
        description="since when Google refuses the workers or does not answer them, and its words; null: it answers"
    )
    recent_cost: float = Field(
        description="US dollars that all TPUs have cost in the last 30 days: those of deleted jobs too, none simulated"
    )


@router.get("", dependencies=[SearchSlot])
def list_tpus(session: ReadSession) -> Tpus:
    """List the TPUs that were requested and are not known to be deleted, with state, health, job and cost so far."""
    found = cloud_resources.list_open(session)
    wanted = select(Job).where(Job.id.in_([one.job_id for one in found]))
    jobs = {job.id: job for job in session.scalars(wanted)} if found else {}
    current = session.scalars(select(now())).one()
    return Tpus(
        tpus=[
            _tpu_view(one, jobs[one.job_id], cloud_resources.cost(one, jobs[one.job_id].price_per_hour, current))
            for one in found
        ],
        refusal=cloud_resources.find_refusal(session),
        recent_cost=round(cloud_resources.total_cost(session, current - timedelta(days=_TOTAL_DAYS), current), 6),
    )


def _tpu_view(resource: CloudResource, job: Job, cost: float) -> TpuView:
    zone, _, name = resource.name.partition("/")
    return TpuView.of(
        resource,
        name=name,
        zone=zone,
        provisioning=resource.kind.removeprefix("tpu_"),
        detail=resource.detail or None,
        job_id=job.id,
        job_name=job.shown_name,
        machine_type=job.machine_type,
        simulated=job.simulated,
        requested_at=resource.intended_at,
        price_per_hour=job.price_per_hour if resource.price_per_hour is None else resource.price_per_hour,
        cost=round(cost, 6),
    )
