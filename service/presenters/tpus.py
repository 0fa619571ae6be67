from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Job
from core.jobs import cloud_resources
from core.jobs.cloud_resources import CloudResource
from service.schemas.tpus import Tpus, TpuView

_TOTAL_DAYS = 30


def tpus_view(session: Session) -> Tpus:
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
