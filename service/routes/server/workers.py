from sqlalchemy.orm import Session

from core.jobs.scheduling import workers
from service.auth.authentication import Caller, SearchSlot
from service.deps import ReadSession, WriteSession
from service.http.routing import api_router
from service.presenters.workers import worker_views
from service.schemas.workers import Workers, WorkerView

router = api_router(prefix="/workers", tags=["workers"])


@router.get("", dependencies=[SearchSlot])
def list_workers(session: ReadSession) -> Workers:
    """List the workers with their state, jobs and GPUs."""
    return Workers(workers=worker_views(session))


@router.post("/{worker}/drain")
def drain_worker(session: WriteSession, _caller: Caller, worker: str) -> WorkerView:
    """Let a worker claim no more jobs; those it runs continue."""
    return _set_drained(session, worker, drained=True)


@router.post("/{worker}/resume")
def resume_worker(session: WriteSession, _caller: Caller, worker: str) -> WorkerView:
    """Let a drained worker claim jobs again."""
    return _set_drained(session, worker, drained=False)


def _set_drained(session: Session, name: str, *, drained: bool) -> WorkerView:
    workers.set_drained(session, name, drained=drained)
    session.flush()
    return next(view for view in worker_views(session) if view.name == name)
