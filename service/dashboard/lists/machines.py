"""The page of machines: workers, GPUs, the queue, billed TPUs, machine types; and the page of all TPUs."""

from collections.abc import Sequence
from typing import Literal

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Job
from core.jobs import queries
from core.jobs.scheduling import workers
from service.app_state import AppState
from service.auth.authentication import PageCaller, SearchSlot, require_key_again, require_key_or_session
from service.auth.ownership import OwnerCheck
from service.dashboard.login import FormTexts, SameOriginForm
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.routing import Router
from service.presenters.catalogue import machine_types_view
from service.presenters.jobs import job_views
from service.presenters.tpus import tpus_view
from service.presenters.workers import worker_views
from service.schemas.jobs import JobView

router = Router(dependencies=[Depends(require_key_or_session), OwnerCheck])

_QUEUED_JOBS = 50


@router.get("/ui/machines", dependencies=[SearchSlot])
def show_machines(session: ReadSession, app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show the workers, the queue, billed TPUs, and the machine types, first those that a running worker offers."""
    machines = machine_types_view(session, app_state).machine_types
    listed = worker_views(session)
    held = [job_id for worker in listed for job_id in worker.job_ids]
    billed = capabilities_of(app_state.settings.backend_of("tpu")).billed
    return render_page(
        "lists/machines.html",
        caller=caller,
        workers=listed,
        names=queries.shown_names(session, held),
        queue=_queue(session, app_state, waiting := queries.queued(session, limit=_QUEUED_JOBS)),
        queued_jobs=_QUEUED_JOBS,
        queue_is_longer=len(waiting) == _QUEUED_JOBS,
        tpus=tpus_view(session) if billed else None,
        machines=sorted(machines, key=lambda machine: (machine.simulated, not machine.available)),
    )


def _queue(session: Session, app_state: AppState, waiting: Sequence[Job]) -> list[JobView]:
    """Return waiting jobs by machine type, in the order of claims."""
    views = [view for view in job_views(session, app_state, waiting) if view.queue_position is not None]
    return sorted(views, key=lambda view: (view.machine_type, view.queue_position))


@router.post("/ui/machines/{worker}/{action}", dependencies=[SameOriginForm])
def change_worker(
    session: WriteSession,
    app_state: AppStateDep,
    caller: PageCaller,
    texts: FormTexts,
    worker: str,
    action: Literal["drain", "resume"],
) -> Response:
    """Let a worker claim no more jobs, or claim jobs again."""
    require_key_again(app_state, caller, texts)
    workers.set_drained(session, worker, drained=action == "drain")
    return RedirectResponse("/ui/machines", 303)


@router.get("/ui/tpus", dependencies=[SearchSlot])
def show_tpus(session: ReadSession, caller: PageCaller) -> Response:
    """Show every TPU that was requested and is not known to be deleted."""
    return render_page("tpus.html", caller=caller, found=tpus_view(session))
