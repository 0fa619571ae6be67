from datetime import timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Job
from core.jobs import cloud_resources
from core.jobs.cloud_resources import CloudResource
from core.jobs.states import OWNED
from service.schemas.tpus import Tpus, TpuView

_TOTAL_DAYS = 30


def tpus_view(session: Session) -> Tpus:
    tpus = cloud_resources.list_open(session)
    wanted = select(Job).where(Job.id.in_([tpu.job_id for tpu in tpus]))
    jobs = {job.id: job for job in session.scalars(wanted)} if tpus else {}
    current = session.scalars(select(now())).one()
    return Tpus(
        tpus=[
            _tpu_view(tpu, jobs[tpu.job_id], cloud_resources.cost(tpu, jobs[tpu.job_id].price_per_hour, current))
            for tpu in tpus
        ],
        unowned=cloud_resources.find_unowned(session),
        refusal=cloud_resources.find_refusal(session),
        recent_cost=round(cloud_resources.total_cost(session, current - timedelta(days=_TOTAL_DAYS)), 6),
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
        owned=job.state in OWNED and job.attempt == resource.attempt,
        job_name=job.shown_name,
        machine_type=job.machine_type,
        simulated=job.simulated,
        requested_at=resource.intended_at,
        price_per_hour=job.price_per_hour if resource.price_per_hour is None else resource.price_per_hour,
        cost=round(cost, 6),
    )
