"""The page of a set of jobs, such as all, those of a query, a sweep or a project: a table beside linked charts."""

import json
import math
import re
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query, Request
from fastapi.responses import RedirectResponse, Response, StreamingResponse
from pydantic import BaseModel, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from core.comparison import comparisons
from core.comparison.measurement import named_goal
from core.db.models.sweeps import Sweep
from core.errors import JobNotFound, SpecInvalid
from core.jobs import queries
from core.jobs.costs.report import CostRow, format_spent, report
from core.jobs.queries import JobFilter, JobPage
from core.jobs.spec.arrays import array_name
from core.jobs.tracking import metrics
from core.jobs.tracking.array_totals import count_members, last_extremes, members_with
from core.search import saved_views
from core.search.computed_columns import METRIC_PREFIX, PARAM_PREFIX, parse_order
from core.search.query_text import Term, parse_terms
from service.app_state import AppState
from service.auth.authentication import ListSlot, PageCaller, Principal, SearchSlot, require_key_or_session
from service.auth.ownership import changeable
from service.dashboard.forms.project_page import find_project, project_facts
from service.dashboard.job.header import LIVE
from service.dashboard.lists.job_list import (
    MOST_COUNTED,
    OPTION_PREFIX,
    PAGE_JOBS,
    Column,
    JobListQuery,
    ListState,
    column_choices,
    filter_among,
    fold,
    next_order,
    shown_columns,
    state_links,
    suggest,
)
from service.dashboard.lists.now_page import main_metric
from service.dashboard.rendering import NO_VALUE, format_number, render_page, state_word
from service.deps import AppStateDep, ReadSession
from service.http.routing import Router
from service.presenters.comparison_verdicts import compared
from service.presenters.job_diff import comparable_options
from service.presenters.job_list import folded_views
from service.presenters.jobs import job_views, public_state
from service.presenters.outputs.explanations import explanation_of
from service.presenters.outputs.run_curves import Axis, CurvesQuery
from service.presenters.sweeps import sweep_details
from service.schemas.jobs import JobView
from service.schemas.sweeps import SweepDetails

router = Router(dependencies=[Depends(require_key_or_session)])

MOST_RUNS = 200
NARROW_JOBS = 20  # a page of a phone, which says so by a cookie
_FIRST_RUNS = 10  # in the first answer of the database, a piece of the response; in each other, twice as many
_POINTS_OF_RUNS = 60_000
MOST_VALUES = 2_000_000  # read for one response: seconds of work
_METRICS = 5  # columns, unless others are chosen
_FEW_PARAMETERS = 3  # columns of a list without charts
_CHARACTERS = 80  # of a value
PRIVATE = {"Cache-Control": "private, no-store"}
_SHOWN_ANYWAY = frozenset({"name", "machineType", "project"})  # options that the table shows otherwise
_PARAMETERS = frozenset({"command", "arrayValue"})  # options that parameters are read from
_WHOLE = {"project": "project", "sweep": "array", "array": "array", "comparison": "set"}  # what spends, by its field
_NO_RESULT = re.compile(r"(?:.*[/_])?(?:lr|learning_rate|epoch|step|steps)\Z", re.IGNORECASE)
_DIGEST = re.compile(r"[0-9a-f]{40,}")


@router.get("/ui/compare")
@router.get("/ui/runs")
def redirect_runs(_caller: PageCaller, request: Request) -> Response:
    return RedirectResponse(f"/ui/jobs?{'&'.join(filter(None, [request.url.query, 'charts=1']))}", 307)


@router.get("/ui/jobs", dependencies=[ListSlot])
def show_jobs(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    request: Request,
    shown: Annotated[JobListQuery, Query()],
) -> Response:
    state = _state(request, shown)
    wanted, problem, page, terms = JobFilter(), None, JobPage([], None), list[Term]()
    sweep, views = None, list[JobView]()
    try:
        terms = parse_terms(state.q)
        sweep = _sweep(session, app_state, terms)
        state = replace(state, sort=state.sort or _first_order(state, sweep))
        wanted = fold(filter_among(session, app_state, caller.id, state.q, state.ids), state, terms)
        page, views = _read(session, app_state, wanted, state, shown)
    except SpecInvalid as error:
        problem = error.message
    kept_views = saved_views.of_user(session, caller.id)
    saved = () if state.charts else saved_views.columns(kept_views)
    return render_page(
        "runs.html",
        400 if problem else 200,
        caller=caller,
        shown=state,
        problem=problem,
        page=page,
        asked=shown,
        **_about(session, app_state, caller, terms, views, sweep),
        **_counts(session, wanted, _whole(session, terms), problem),
        **(table := _table(session, state, saved, views, sweep)),
        curves=_curves_url(request, state, views, table["best_members"]),
        **suggest(session, app_state, caller, state, [] if problem or page.jobs else terms),
        states=state_links(state, terms),
        causes={} if state.charts else {view.id: explanation_of(app_state.logs, view).evidence for view in views},
        views=kept_views,
        live=not state.charts or any(view.state in LIVE for view in views) or bool(sweep and sweep.state == "running"),
        public_url=app_state.settings.public_url,
        LIVE=LIVE,
    )


def _about(
    session: Session,
    app_state: AppState,
    caller: Principal,
    terms: Sequence[Term],
    views: Sequence[JobView],
    sweep: SweepDetails | None,
) -> dict[str, Any]:
    """Return the runs with what they belong to, and what of that this caller may change."""
    owned = {(view.owner_key, view.project_id) for view in [*views, sweep] if view}
    shown = _value_of(terms, "comparison") or ""
    ids = {shown, *(view.id for view in views if view.id.startswith(queries.COMPARISON))}
    of_comparisons = compared(session, app_state, comparisons.by_ids(session, ids - {""}))
    return {
        "runs": views,
        "most_members": MOST_RUNS,
        "sweep": sweep,
        "trials": {trial.job_id: trial for trial in sweep.trials if trial.job_id} if sweep else {},
        "compared": of_comparisons,
        "comparison": of_comparisons.get(shown),
        "comparison_id": shown,
        "facts": project_facts(session, app_state, _value_of(terms, "project")),
        "array": array_name(views[0].name, views[0].array_index) if views and _value_of(terms, "array") else "",
        "changeable": changeable(session, app_state, caller.id, owned),
    }


def _curves_url(
    request: Request, state: ListState, views: Sequence[JobView], best_members: Mapping[str, str]
) -> str | None:
    """Return the address that the page asks for the curves first, so that they are loaded beside its scripts."""
    if not state.charts or not request.query_params.keys().isdisjoint({"x", "from", "part"}):
        return None
    drawn = [
        best_members.get(view.id, view.id) for view in views if view.array_members is None or view.id not in state.open
    ]
    return f"/ui/runs/series?{urlencode({'ids': ','.join(drawn), 'axis': 'step'})}"


def _state(request: Request, shown: JobListQuery) -> ListState:
    size = NARROW_JOBS if request.cookies.get("narrow") else MOST_RUNS if shown.charts else PAGE_JOBS
    return ListState(shown.text(), shown.sort, shown.columns(), shown.ids, shown.charts, tuple(shown.open), size)


def _first_order(state: ListState, sweep: SweepDetails | None) -> str:
    """Return the order of the table unless one is chosen: the best trials first, chosen jobs as they began."""
    if sweep and sweep.metric:
        return f"{'-' if sweep.goal == 'max' else ''}{METRIC_PREFIX}{sweep.metric}"
    return "created" if state.ids else ""


def _value_of(terms: Sequence[Term], field: str) -> str | None:
    """Return the only value of a field in a query."""
    values = [value for term in terms if term.field == field and not term.negated for value in term.values]
    return values[0] if len(values) == 1 else None


def _sweep(session: Session, app_state: AppState, terms: Sequence[Term]) -> SweepDetails | None:
    sweep_id = _value_of(terms, "sweep")
    row = session.scalar(select(Sweep).where(Sweep.id == sweep_id)) if sweep_id else None
    return sweep_details(session, app_state, row) if row else None


def _read(
    session: Session, app_state: AppState, wanted: JobFilter, state: ListState, shown: JobListQuery
) -> tuple[JobPage, list[JobView]]:
    """Return a page, and its rows: jobs, and arrays and comparisons as one row, below it the members of those opened.

    Such a row has the id of the array or the comparison.
    """
    ordering = parse_order(session, state.sort, folded=wanted.folded) if state.sort else None
    page = queries.page(
        session, wanted, limit=state.size, after=shown.after or None, before=shown.before or None, ordering=ordering
    )
    if state.ids and not (page.jobs or state.q or shown.did or shown.after or shown.before):
        raise JobNotFound(state.ids[:_CHARACTERS])
    views = (
        folded_views(session, app_state, page.jobs, of_comparisons=wanted.comparisons_folded)
        if wanted.folded
        else job_views(session, app_state, page.jobs)
    )
    opened = {
        array_id: queries.page(session, _members(wanted, array_id), limit=MOST_RUNS, ordering=ordering).jobs
        for array_id in {str(view.array_id) for view in views if wanted.folded} & {*state.open}
    }
    members = {
        view.id: view for view in job_views(session, app_state, [job for jobs in opened.values() for job in jobs])
    }
    rows = list[JobView]()
    for view in views:
        if view.array_members is not None and view.array_id:
            view.id = view.array_id
        rows += [view, *(members[job.id] for job in opened.get(view.id, ()))]
    return page, rows


def _members(wanted: JobFilter, array_id: str) -> JobFilter:
    conditions = [*wanted.conditions, queries.member_condition([array_id])]
    return replace(wanted, folded=False, comparisons_folded=False, conditions=conditions)


def _counts(session: Session, wanted: JobFilter, whole: tuple[str, str] | None, problem: str | None) -> dict[str, Any]:
    """Return the number of jobs by state, and what they have cost; of a whole set, also its deleted jobs.

    `counted`: the number of the newest jobs that are counted; None: all.
    """
    counts: Counter[str] = Counter()
    spent = list[CostRow]()
    of_jobs = replace(wanted, folded=False, comparisons_folded=False)
    for some in [] if problem else count_members(session, queries.newest(session, of_jobs, most=MOST_COUNTED)):
        state = public_state(some.state, some.exit_code)
        counts[state_word(state)] += some.members
        real, simulated = (some.dollars or 0.0 if some.simulated is kind else 0.0 for kind in (False, True))
        spent.append(CostRow("", real, simulated, some.gpu_hours or 0.0))
    if whole is not None:
        spent = report(session, "machine", None, *whole)
    total = queries.count(session, wanted, most=MOST_COUNTED) if wanted.folded else counts.total()
    cut = MOST_COUNTED if counts.total() == MOST_COUNTED else None
    shown = {"count": f"{total:,}{'+' * (total == MOST_COUNTED)}", "matching": total % MOST_COUNTED, "counted": cut}
    return {**shown, "counts": counts, "spent": format_spent(spent), "is_whole": whole is not None}


def _whole(session: Session, terms: Sequence[Term]) -> tuple[str, str] | None:
    """Return the kind and the id of a project, or of a sweep or the like, if a query names nothing else."""
    given = {kind: _value_of(terms, field) for field, kind in _WHOLE.items()} if len(terms) == 1 else {}
    ids = {"project": find_project(session, name)} if (name := given.pop("project", None)) else given
    return next(((kind, subject) for kind, subject in ids.items() if subject), None)


def _table(
    session: Session, state: ListState, saved: Sequence[str], views: Sequence[JobView], sweep: SweepDetails | None
) -> dict[str, Any]:
    """Return the columns and their values, the best of them marked; those without a value only if just chosen."""
    last = metrics.last_values(session, [view.id for view in views])
    extremes = last_extremes(session, {view.id for view in views if view.array_members is not None})
    chosen = _chosen_goals(session, extremes)
    for array_id, ends in extremes.items():
        goal_of = {name: chosen.get((array_id, name)) or _goal(name, chosen) for name in ends}
        last[array_id] = {name: both[goal_of[name] == "max"] for name, both in ends.items() if goal_of[name]}
    with_metric = Counter(name for values in last.values() for name in values)
    metric = (sweep.metric if sweep else None) or _shared_metric(with_metric, sum(map(bool, last.values())))
    varied = [name for name in with_metric if name == metric or len(views) == 1 or _tells_apart(name, last, views)]
    names = sorted(
        varied, key=lambda name: (name != metric, _NO_RESULT.match(name) is not None, -with_metric[name], name)
    )
    options = {view.id: comparable_options(view) for view in views if view.array_members is None}
    listed = shown_columns(state.cols or saved or _default_columns(state, views, options, sweep, names))
    titles = {column.title for column in listed if column.option}
    texts = {run: {name: _text(given[name]) for name in titles & given.keys()} for run, given in options.items()}
    columns = listed if state.cols else _filled(listed, views, with_metric, texts)
    measured = [column.name for column in columns if column.metric]
    goals: dict[str, str] = {name: "" if _NO_RESULT.match(name) else _goal(name, chosen) for name in measured}
    best = {name: _best(name, goal, last) for name, goal in goals.items()}
    if sweep and sweep.metric:
        goals[sweep.metric], best[sweep.metric] = sweep.goal, {sweep.best.job_id if sweep.best else None}
    of_arrays = {array_id: last[array_id][metric] for array_id in extremes if metric in last[array_id]}
    return {
        "last": last,
        "metric": metric,
        "goals": goals,
        "best": best,
        "best_run": next((view for view in views if view.id in best.get(str(metric), ())), None),
        "best_members": members_with(session, metric, of_arrays) if metric and of_arrays else {},
        "options": texts,
        **column_choices(views, last, listed),
        "columns": columns,
        "orders": {column.name: next_order(state.sort, column, goals.get(column.name, "")) for column in columns},
    }


def _tells_apart(metric: str, last: Mapping[str, Mapping[str, float]], views: Sequence[JobView]) -> bool:
    """Return whether runs differ in a metric, and it repeats no parameter, as a learning rate that is constant does."""
    measured = [view for view in views if metric in last.get(view.id, ()) and view.array_members is None]
    names = measured[0].params if measured else ()
    repeated = any(all(view.params.get(name) == last[view.id][metric] for view in measured) for name in names)
    return len({row.get(metric) for row in last.values()} - {None}) > 1 and not repeated


def _filled(
    columns: Sequence[Column],
    views: Sequence[JobView],
    measured: Mapping[str, int],
    options: Mapping[str, dict[str, str]],
) -> list[Column]:
    """Return the columns without those of metrics, parameters and options that no row has a value for."""
    params = {name for view in views if view.id in options for name in view.params}
    given = {name for texts in options.values() for name, text in texts.items() if text != NO_VALUE}
    return [
        column
        for column in columns
        if column.title
        in (measured if column.metric else params if column.param else given if column.option else [column.title])
    ]


def _shared_metric(with_metric: Mapping[str, int], runs: int) -> str | None:
    """Return the main one of the metrics that most runs with metrics have; if there is none, of the commonest."""
    results = {name: count for name, count in with_metric.items() if not _NO_RESULT.match(name)} or with_metric
    least = min(runs / 2, max(results.values(), default=0))
    return main_metric(name for name, count in results.items() if count >= least)


def _default_columns(
    state: ListState,
    views: Sequence[JobView],
    options: Mapping[str, Mapping[str, Any]],
    sweep: SweepDetails | None,
    measured: Sequence[str],
) -> list[str]:
    """Return the metrics, and the parameters in which the runs differ; beside charts, also other options."""
    rows = [
        {f"{PARAM_PREFIX}{name}": value for name, value in view.params.items()}
        | {name: value for name, value in options[view.id].items() if not name.startswith((PARAM_PREFIX, "envVars."))}
        for view in views
        if view.id in options
    ]
    given = Counter(name for row in rows for name in row if name not in _SHOWN_ANYWAY)
    differing = [name for name in given if _differ([row.get(name) for row in rows if state.charts or name in row])]
    tried = [f"{PARAM_PREFIX}{name}" for name in sweep.space] if sweep else []
    chosen = list(dict.fromkeys([*tried, *sorted(name for name in differing if name.startswith(PARAM_PREFIX))]))
    if not state.charts:
        few = sorted(chosen, key=lambda name: -given[name])[:_FEW_PARAMETERS]
        project = ["project"] if len({view.project for view in views}) > 1 else []
        return [*measured[:1], *few, "machine", *project, "created", "duration", "cost"]
    listed = {*chosen, *(_PARAMETERS if chosen else ())}
    others = [f"{OPTION_PREFIX}{name}" for name in differing if name not in listed]
    shared = {"machineType": "machine", "project": "project"}
    fixed = [column for name, column in shared.items() if len({row[name] for row in rows}) > 1]
    return [*measured[:1], *chosen, *measured[1:_METRICS], *others, *fixed, "duration", "cost"]


def _differ(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values)


def _chosen_goals(session: Session, arrays: Collection[str]) -> dict[tuple[str, str], str]:
    """Return the direction in which the metric of each sweep and comparison here improves, by its id and the metric."""
    if not arrays:
        return {}
    plans = session.execute(select(Sweep.id, Sweep.plan).where(Sweep.id.in_(arrays)))
    of_comparisons = {(made.id, made.metric): made.goal for made in comparisons.by_ids(session, arrays) if made.metric}
    return of_comparisons | {(sweep_id, plan["metric"]): plan["goal"] for sweep_id, plan in plans}


def _goal(metric: str, chosen: Mapping[tuple[str, str], str]) -> str:
    """Return the direction in which a metric improves; empty if sweeps differ in it, or nothing tells."""
    of_sweeps = {goal for (_, name), goal in chosen.items() if name == metric}
    return (named_goal(metric) or "") if not of_sweeps else of_sweeps.pop() if len(of_sweeps) == 1 else ""


def _best(metric: str, goal: str, last: Mapping[str, Mapping[str, float]]) -> set[str | None]:
    """Return the runs with the best last value, unless all are alike."""
    finite = {run: values[metric] for run, values in last.items() if math.isfinite(values.get(metric, math.nan))}
    best = (min if goal == "min" else max)(finite.values(), default=None)
    return {run for run, value in finite.items() if value == best} if goal and len(set(finite.values())) > 1 else set()


class SeriesQuery(BaseModel):
    ids: str = Field(max_length=16 * MOST_RUNS)
    axis: Axis = "step"
    points: int | None = Field(None, ge=3, le=1000, description="of a curve; null: fewer, the more curves there are")
    start: float | None = Field(None, alias="from", allow_inf_nan=False)
    stop: float | None = Field(None, alias="to", allow_inf_nan=False)

    def curves(self, runs: int) -> CurvesQuery:
        within = None if self.start is None or self.stop is None else (self.start, self.stop)
        points = self.points or max(300, min(1000, _POINTS_OF_RUNS // runs))
        return CurvesQuery(self.axis, points, MOST_VALUES // runs, within)


@router.get("/ui/runs/series", dependencies=[SearchSlot])
async def read_series(app_state: AppStateDep, query: Annotated[SeriesQuery, Query()]) -> Response:
    """Send the metrics of some runs as lines of JSON, a run each, as soon as they are read."""
    ids = list(dict.fromkeys(query.ids.split(",")))[:MOST_RUNS]
    read = partial(_read_lines, app_state, query.curves(len(ids)))

    async def lines() -> AsyncIterator[bytes]:
        first, count = 0, _FIRST_RUNS
        while first < len(ids):
            yield await app_state.lanes.reading.run(read, ids[first : first + count])
            first, count = first + count, count * 2

    return StreamingResponse(lines(), media_type="application/x-ndjson", headers=PRIVATE)


def _read_lines(app_state: AppState, query: CurvesQuery, ids: Sequence[str]) -> bytes:
    with app_state.database.read() as session:
        counts, none = metrics.count_own_rows(session, ids), metrics.OwnCount()
        by_id = {job.id: job for job in queries.by_ids(session, ids) if job.deleted_at is None}
        jobs = [by_id[job_id] for job_id in ids if job_id in by_id]
        return b"".join(app_state.metrics.get_curves(session, job, counts.get(job.id, none), query) for job in jobs)


def _text(value: object) -> str:
    if value is None or value in ("", []):
        return NO_VALUE
    if isinstance(value, float):
        return format_number(value)
    if isinstance(value, list):
        return ", ".join(map(str, value))
    text = value if isinstance(value, str) else json.dumps(value)
    most = 12 if _DIGEST.fullmatch(text) else _CHARACTERS
    return f"{text[:most]}…" if len(text) > most else text
