from dataclasses import replace

from sqlalchemy.orm import Session

from core.jobs import queries
from core.jobs.queries import JobFilter
from core.jobs.tracking import metrics
from core.search.computed_columns import parse_order
from core.search.conditions import build_conditions
from core.search.unknown_names import find_unknown_names
from core.security import users
from service.app_state import AppState
from service.presenters.jobs import folded_views, job_filter, job_views
from service.schemas.job_list import ListJobs
from service.schemas.jobs import JobsPage


def read_filter(session: Session, app_state: AppState, caller_id: str, wanted: ListJobs) -> JobFilter:
    return replace(
        job_filter(wanted, app_state.catalogue),
        submitted_by=users.keys_of_same_user(session, caller_id) if wanted.mine else (),
        conditions=build_conditions(session, app_state.catalogue, wanted.q or ""),
    )


def jobs_page(session: Session, app_state: AppState, caller_id: str, wanted: ListJobs) -> JobsPage:
    matches = read_filter(session, app_state, caller_id, wanted)
    page = queries.page(
        session,
        matches,
        limit=wanted.limit,
        after=wanted.after,
        before=wanted.before,
        ordering=parse_order(session, wanted.sort, folded=wanted.fold) if wanted.sort else None,
    )
    views = (folded_views if wanted.fold else job_views)(session, app_state, page.jobs)
    if wanted.metrics:
        last = metrics.last_values(session, [view.id for view in views])
        names = wanted.metrics.split(",")
        values = [{name: of[name] for name in names if name in (of := last.get(view.id, {}))} for view in views]
        views = [
            view.model_copy(update={"metrics": values_of_job})
            for view, values_of_job in zip(views, values, strict=True)
        ]
    return JobsPage(
        jobs=views,
        next=page.next_cursor,
        previous=page.previous_cursor,
        notes=[] if page.jobs else [str(name) for name in find_unknown_names(session, wanted.q or "")],
    )
