"""Actions on several jobs or whole arrays, each of which succeeds or fails by itself."""

from sqlalchemy.orm import Session

from core.db.database import on_commit
from core.db.models.jobs import Job
from core.errors import GradientError
from core.jobs import edits, lifecycle, queries
from core.jobs.spec.arrays import is_array_id
from service.app_state import AppState
from service.auth.authentication import Principal
from service.auth.ownership import require_owner
from service.http.errors import error_detail
from service.presenters.jobs import job_view
from service.schemas.job_changes import ActionResult, JobActions

_MEMBERS_AT_ONCE = 100  # members of an array that change in one transaction, during which nobody else writes


def act(app_state: AppState, caller: Principal, wanted: JobActions) -> list[ActionResult]:
    return [_act(app_state, caller, job_id, wanted) for job_id in dict.fromkeys(wanted.ids)]


def _act(app_state: AppState, caller: Principal, job_id: str, wanted: JobActions) -> ActionResult:
    try:
        if is_array_id(job_id):
            with app_state.database.read() as session:
                ids = [job.id for job in queries.members(session, job_id)]
            # The last first: else each stopped member would let another one start.
            for start in range(len(ids), 0, -_MEMBERS_AT_ONCE):
                with app_state.database.write() as session:
                    for member in reversed(ids[max(0, start - _MEMBERS_AT_ONCE) : start]):
                        _act_on_one(session, app_state, caller, member, wanted)
            return ActionResult(id=job_id, done=True)
        with app_state.database.write() as session:
            job = _act_on_one(session, app_state, caller, job_id, wanted)
            view = None if wanted.action == "delete" else job_view(session, app_state, job)
        return ActionResult(id=job_id, done=True, job=view)
    except GradientError as error:
        return ActionResult(id=job_id, done=False, error=error_detail(error))


def _act_on_one(session: Session, app_state: AppState, caller: Principal, job_id: str, wanted: JobActions) -> Job:
    require_owner(session, app_state, caller, job_id)
    if wanted.action == "tag":
        return edits.edit(session, job_id, add=wanted.add, remove=wanted.remove)
    on_commit(session, app_state.wake)
    if wanted.action == "stop":
        return lifecycle.request_stop(session, job_id, at_once=wanted.now)
    return lifecycle.delete(session, job_id)
