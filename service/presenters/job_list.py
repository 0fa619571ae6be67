from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.jobs import queries
from core.jobs.queries import JobFilter
from core.jobs.spec.arrays import array_name
from core.jobs.tracking import metrics
from core.jobs.tracking.array_totals import MembersInState, count_members, diverged_members
from core.search.computed_columns import parse_order
from core.search.conditions import build_conditions
from core.search.unknown_names import find_unknown_names
from core.security import users
from service.app_state import AppState
from service.presenters.jobs import job_filter, job_views, public_state
from service.schemas.job_list import ListJobs
from service.schemas.jobs import JobsPage, JobView


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


def folded_views(
    session: Session, app_state: AppState, jobs: Sequence[Job], *, of_comparisons: bool = False
) -> list[JobView]:
    """Convert jobs to their public form; the first member of an array has the numbers of all its members.

    `of_comparisons`: so does the first job that a comparison submitted, whose id is then its array's.
    """
    views = job_views(session, app_state, jobs)
    for view in views if of_comparisons else ():
        view.array_id = view.array_id or next((made.id for made in view.comparisons if made.id == view.cost_set), None)
    arrays: dict[str | None, list[MembersInState]] = defaultdict(list)
    ids = {view.array_id for view in views if view.array_id}
    for members in count_members(session, queries.member_condition(ids)):
        arrays[members.array_id].append(members)
    diverged = diverged_members(session, ids) if ids else {}
    for view in views:
        if view.array_id:
            view.diverged = diverged.get(view.array_id)
            _take_totals(view, arrays[view.array_id])
    return views


def _take_totals(view: JobView, array: Sequence[MembersInState]) -> None:
    counts: Counter[str] = Counter()
    for some in array:
        counts[public_state(some.state, some.exit_code)] += some.members
    view.array_members = dict(counts)
    view.name = array_name(view.name, view.array_index)
    seconds = [some.seconds for some in array if some.seconds is not None]
    view.duration_seconds = round(sum(seconds), 3) if seconds else None
    view.cost = round(sum(some.dollars or 0.0 for some in array), 6)
    view.gpu_hours = round(sum(some.gpu_hours or 0.0 for some in array), 6)
    live = [some for some in array if some.finished_at is None]
    view.stop_requested, view.stops_by = all(some.stopping == some.members for some in live) and bool(live), None
    ends = [some.finished_at for some in array]
    view.finished_at = None if None in ends else max(end for end in ends if end is not None)
