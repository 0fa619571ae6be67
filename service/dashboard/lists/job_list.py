"""Queries, orders and columns of the table of jobs, and actions on selected jobs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Depends, Query, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from sqlalchemy import or_
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import SpecInvalid
from core.jobs import queries
from core.jobs.queries import JobFilter
from core.search import saved_views
from core.search.completion import complete
from core.search.computed_columns import METRIC_PREFIX, PARAM_PREFIX
from core.search.conditions import DIVERGED, STATES
from core.search.query_text import Term, quote
from core.search.unknown_names import UnknownName, find_unknown_names
from service import job_actions
from service.app_state import AppState
from service.auth.authentication import PageCaller, Principal, SearchSlot, require_key_or_session
from service.dashboard.login import FormTexts, SameOriginForm, read_form
from service.dashboard.rendering import job_url, runs_url
from service.deps import AppStateDep, ReadSession, RequestId, WriteSession
from service.http.routing import Router
from service.presenters.job_list import read_filter
from service.schemas.base import parse_request
from service.schemas.comparisons import CompareJobs
from service.schemas.job_changes import ActionResult, JobActions
from service.schemas.job_list import ListJobs
from service.schemas.jobs import JobView
from service.submission import compare
from service.submission.stages import RequestOrigin

_COMPARED_JOBS = 2
_SHARED_FIELDS = frozenset({"project", "machine", "tag"})
"""Fields of the query language in which the members of an array are alike."""
_COMPARED_FIELDS = frozenset({"project"})
"""Those in which the jobs of a comparison are alike."""
router = Router(dependencies=[Depends(require_key_or_session)])

PAGE_JOBS = 50
MOST_COUNTED = 10_000
_MOST_COLUMNS = 20
_MOST_SIDES = 4
_TERMS = {word: f"state:{word}" for word in STATES} | {DIVERGED: f"is:{DIVERGED}"}  # meant by a word alone
_ACTIONS_AT_ONCE = 200
_MAX_FIELDS = _ACTIONS_AT_ONCE + PAGE_JOBS  # a page of runs has as many jobs as are acted on at once
_FILTERS = {"state": "state", "project": "project", "machineType": "machine", "tag": "tag"}


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    title: str
    sort: str  # what `sort` calls it; empty: lists are not sorted by it
    numeric: bool = False  # True if its values are numbers or times, of which the highest come first
    metric: bool = False  # True if it shows the last value of the metric of this name
    param: str = ""  # the parameter that it shows; empty: none
    option: bool = False  # True if it shows another option of jobs


COLUMNS = (
    Column("machine", "Machine", "machine"),
    Column("project", "Project", "project"),
    Column("created", "Submitted", "created", numeric=True),
    Column("duration", "Duration", "duration", numeric=True),
    Column("cost", "Cost", "cost", numeric=True),
    Column("finished", "Finished", "finished", numeric=True),
    Column("attempt", "Attempt", "", numeric=True),
    Column("exit", "Exit code", "", numeric=True),
)
"""The columns besides state and name, which are always shown."""
STATE = Column("state", "State", "state")
NAME = Column("name", "Job", "name")
OPTION_PREFIX = "option."
_DEFAULT = ("machine", "project", "created", "duration", "cost")


def shown_columns(names: Sequence[str]) -> list[Column]:
    """Return the columns of these names, each once; other names are metrics, parameters or options. None: default."""
    by_name = {column.name: column for column in COLUMNS}
    wanted = dict.fromkeys(names or _DEFAULT)
    return [STATE, NAME, *(by_name.get(name) or _measured(name) for name in wanted)]


def _measured(name: str) -> Column:
    if name.startswith(PARAM_PREFIX):
        param = name.removeprefix(PARAM_PREFIX)
        return Column(name, param, name, numeric=True, param=param)
    if name.startswith(OPTION_PREFIX):
        return Column(name, name.removeprefix(OPTION_PREFIX), "", option=True)
    return Column(name, name, f"{METRIC_PREFIX}{name}", numeric=True, metric=True)


class JobListQuery(BaseModel):
    """The state of the list: its query, which may also be given filter by filter, its order, columns and page."""

    model_config = ConfigDict(alias_generator=to_camel)

    q: str = Field("", max_length=500)
    ids: str = Field("", max_length=3200, description="ids of the only jobs and arrays, comma separated")
    sort: str = Field("", max_length=200)
    cols: list[str] = Field([], max_length=20)
    after: str = ""
    before: str = ""
    at: int = Field(1, ge=1, description="number of the first row of the page")
    charts: str = Field("", pattern="^1?$", description="1: charts beside the table")
    open: list[str] = Field([], max_length=20, description="arrays whose members are shown below their row")
    did: str = Field("", pattern=r"^$|^(stop|delete|tag)\.\d{1,3}\.\d{1,3}$", description="an action and its counts")
    state: str = ""
    project: str = ""
    machine_type: str = ""
    tag: str = ""
    query: str = Field("", max_length=200)

    def columns(self) -> tuple[str, ...]:
        return tuple(name for part in self.cols for name in part.replace(",", " ").split())

    def text(self) -> str:
        given = self.model_dump(by_alias=True)
        filters = [
            f"{field}:{','.join(quote(value.strip()) for value in given[name].split(','))}"
            for name, field in _FILTERS.items()
            if given[name].strip()
        ]
        free = [quote(self.query, always=True)] if self.query.strip() else []
        return " ".join([part for part in (self.q.strip(), *filters, *free) if part])


@dataclass(frozen=True, slots=True)
class ListState:
    """The state that the addresses of a set of jobs share."""

    q: str
    sort: str
    cols: tuple[str, ...]
    ids: str = ""  # of the only jobs, comma separated; empty: all
    charts: str = ""  # "1": beside the table
    open: tuple[str, ...] = ()  # arrays whose members are shown below their row
    size: int = PAGE_JOBS  # most rows of a page

    def url(self, **changes: str | int | tuple[str, ...] | None) -> str:
        """Return the address of this list with changes, from its first page unless they name another."""
        names = ("q", "ids", "sort", "cols", "charts", "open")
        values = {name: getattr(self, name) for name in names} | changes
        given = urlencode({name: value for name, value in values.items() if value}, doseq=True)
        return f"/ui/jobs?{given}" if given else "/ui/jobs"

    def toggle(self, array_id: str) -> str:
        """Return the address with an array opened, or closed."""
        others = tuple(name for name in self.open if name != array_id)
        return self.url(open=others if len(others) < len(self.open) else (*others, array_id))


@dataclass(frozen=True, slots=True)
class Chip:
    """A link that changes the query."""

    text: str
    url: str
    chosen: bool = False


def column_choices(
    jobs: Sequence[JobView], last: dict[str, dict[str, float]], columns: Sequence[Column]
) -> dict[str, Sequence[object]]:
    """Return the chosen columns, and those, metrics and parameters of the shown jobs that could be columns, too."""
    given = {column.name for column in columns}
    measured = {name for values in last.values() for name in values}
    params = {f"{PARAM_PREFIX}{name}" for job in jobs for name in job.params}
    offered = {"metrics": sorted(measured - given)[:50], "params": sorted(params - given)[:50]}
    return {"chosen": columns, "choices": COLUMNS, **offered}


def suggest(
    session: Session, app_state: AppState, caller: Principal, state: ListState, terms: Sequence[Term]
) -> dict[str, Sequence[object]]:
    """Return queries that find jobs: a state for its word, without stars, the sides of an OR, names that jobs have."""
    offers = []
    for term in terms:
        word = term.text.lower()
        other = _TERMS.get(word) or term.text.replace("*", "")
        offers += [(other, state.q.replace(term.text, other))] if other != term.text else []
    sides = [" ".join(side) for is_or, side in groupby((term.text for term in terms), "OR".__eq__) if not is_or]
    offers += [(side, side) for side in sides[:_MOST_SIDES]] if len(sides) > 1 else []
    chips = []
    for text, query in offers:
        wanted = read_filter(session, app_state, caller.id, ListJobs.model_validate({"q": query}))
        if count := queries.count(session, wanted, most=MOST_COUNTED):
            chips.append(Chip(f"{text} ({count:,})", state.url(q=query)))
    unknown = find_unknown_names(session, state.q) if terms else []
    return {"suggested": chips, "unknown": [(name, _offer(state, name)) for name in unknown]}


def _folds(state: "ListState", terms: Sequence[Term]) -> bool:
    """Return whether an array is one row: not if jobs are chosen, found or sorted by what its members differ in."""
    orders = {"", STATE.sort, NAME.sort, *(column.sort for column in COLUMNS)}
    if state.ids or state.sort.removeprefix("-") not in orders:
        return False
    return all(term.field in _SHARED_FIELDS and term.operator == ":" for term in terms)


def fold(wanted: JobFilter, state: "ListState", terms: Sequence[Term]) -> JobFilter:
    """Return the filter with a row for an array, and for a comparison: its jobs differ in machine, time and cost."""
    folded = _folds(state, terms)
    alike = all(term.field in _COMPARED_FIELDS for term in terms) and state.sort.removeprefix("-") in {"", "created"}
    return replace(wanted, folded=folded, comparisons_folded=folded and alike)


def _offer(state: ListState, unknown: UnknownName) -> list[Chip]:
    """Return the query with each offered name in place of the unknown one, and with the term as text."""
    term = unknown.term
    texts = [term.text.replace(term.field, name, 1) for name in unknown.offered]
    return [
        Chip(choice, state.url(q=state.q.replace(term.text, choice)))
        for choice in (*texts, quote(term.text, always=True))
    ]


def state_links(state: ListState, terms: list[Term]) -> list[Chip]:
    rest = [term.text for term in terms if term.field != "state"]
    chosen = {value.lower() for term in terms if term.field == "state" and not term.negated for value in term.values}
    every = Chip("All", state.url(q=" ".join(rest)), chosen=len(rest) == len(terms))
    return [
        every,
        *(
            Chip(word.capitalize(), state.url(q=" ".join([*rest, f"state:{word}"])), chosen=word in chosen)
            for word in STATES
        ),
    ]


def next_order(sort: str, column: Column, goal: str = "") -> tuple[str, str]:
    """Return the order to which a column's title leads, and that by it now, as `aria-sort` has it.

    `goal`: `min` if the lowest values come first.
    """
    current = sort or "-created"
    order = {column.sort: "ascending", f"-{column.sort}": "descending"}.get(current, "none")
    first = f"-{column.sort}" if column.numeric and goal != "min" else column.sort
    other = column.sort if first.startswith("-") else f"-{column.sort}"
    return other if current == first else first, order


@dataclass(frozen=True, slots=True)
class ActionForm:
    action: str
    ids: list[str]
    tag: str
    back: str
    q: str
    among: str  # ids of the only jobs in which the query looks, comma separated; empty: all
    every: bool  # of all jobs that the query finds, in place of the ids


async def _action_form(request: Request, _caller: PageCaller) -> ActionForm:
    form = await read_form(request, max_fields=_MAX_FIELDS)
    texts = {name: value for name, value in form.items() if isinstance(value, str)}
    ids = [job_id for job_id in form.getlist("ids") if isinstance(job_id, str)]
    back = texts.get("back", "")
    safe = back if back.startswith("/ui/jobs") else "/ui/jobs"
    every = texts.get("every") == "yes"
    query = texts.get("q", ""), texts.get("among", "")
    return ActionForm(texts.get("action", ""), ids, texts.get("tag", "").strip(), safe, *query, every)


async def _columns_form(request: Request, _caller: PageCaller) -> ListState:
    form = await read_form(request, max_fields=_MAX_FIELDS)
    texts = {name: value for name, value in form.items() if isinstance(value, str)}
    names = [name for text in form.getlist("cols") if isinstance(text, str) for name in text.replace(",", " ").split()]
    return ListState(texts.get("q", ""), texts.get("sort", ""), tuple(dict.fromkeys(names))[:_MOST_COLUMNS])


@router.post("/ui/jobs/actions", dependencies=[SameOriginForm])
def act_on_jobs(
    app_state: AppStateDep,
    caller: PageCaller,
    request_id: RequestId,
    form: Annotated[ActionForm, Depends(_action_form)],
) -> Response:
    """Stop, tag, delete or compare the selected jobs."""
    if not form.ids:
        raise SpecInvalid("No jobs are selected. Go back and select at least one.", field="ids")
    if form.every and form.action in {"compare", "diff"}:
        return RedirectResponse(runs_url(q=form.q, ids=form.among), 303)
    if form.action == "compare" or (form.action == "diff" and len(form.ids) > _COMPARED_JOBS):
        return RedirectResponse(runs_url(ids=",".join(form.ids)), 303)
    if form.action == "machines":
        compared = parse_request(CompareJobs, {"jobs": form.ids})
        with app_state.database.write() as session:
            comparison_id, _ = compare.compare_jobs(
                session, app_state, RequestOrigin(caller.id, request_id, None), compared
            )
        return RedirectResponse(f"/ui/comparisons/{comparison_id}", 303)
    if form.action == "diff":
        if len(form.ids) != _COMPARED_JOBS:
            raise SpecInvalid("Differences are shown for two jobs. Go back and select two.", field="ids")
        return RedirectResponse(job_url(form.ids[1], "/diff", other=form.ids[0]), 303)
    if form.action == "tag" and not form.tag:
        raise SpecInvalid("No tag was entered. Go back and enter one.", field="tag")
    add = [form.tag] if form.action == "tag" else []
    ids = _matching_ids(app_state, caller, form) if form.every else _with_compared(app_state, form.ids)
    results: list[ActionResult] = []
    for first in range(0, len(ids), _ACTIONS_AT_ONCE):
        fields: dict[str, object] = {"action": form.action, "ids": ids[first : first + _ACTIONS_AT_ONCE], "add": add}
        results += job_actions.act(app_state, caller, parse_request(JobActions, fields))
    failed = sum(not result.done for result in results)
    joint = "&" if "?" in form.back else "?"
    return RedirectResponse(f"{form.back}{joint}did={form.action}.{len(results) - failed}.{failed}", 303)


def _with_compared(app_state: AppState, ids: Sequence[str]) -> list[str]:
    """Return these ids, those of jobs in place of the comparisons that submitted them."""
    compared = [given_id for given_id in ids if given_id.startswith(queries.COMPARISON)]
    wanted = JobFilter(conditions=[queries.member_condition(compared)])
    with app_state.database.read() as session:
        members = queries.ids(session, wanted, most=MOST_COUNTED) if compared else []
    return list(dict.fromkeys([*(given_id for given_id in ids if given_id not in compared), *members]))


def filter_among(session: Session, app_state: AppState, caller_id: str, q: str, among: str) -> JobFilter:
    """Return the filter of a query that looks in these jobs, arrays and comparisons, comma separated; else in all."""
    wanted = read_filter(session, app_state, caller_id, ListJobs.model_validate({"q": q} if q else {}))
    if not among:
        return wanted
    ids = [part.strip() for part in among.split(",")]
    return replace(wanted, conditions=[*wanted.conditions, or_(Job.id.in_(ids), queries.member_condition(ids))])


def _matching_ids(app_state: AppState, caller: Principal, form: ActionForm) -> list[str]:
    """Return the jobs that a query finds, the newest first."""
    with app_state.database.read() as session:
        wanted = filter_among(session, app_state, caller.id, form.q, form.among)
        ids = queries.ids(session, wanted, most=MOST_COUNTED)
    if len(ids) == MOST_COUNTED:
        raise SpecInvalid(f"At least {MOST_COUNTED:,} jobs match. Go back and narrow the query.", field="q")
    return ids


@router.get("/ui/jobs/complete", dependencies=[SearchSlot])
def complete_query(
    session: ReadSession, app_state: AppStateDep, text: Annotated[str, Query(max_length=500)]
) -> Response:
    """Return terms that the last one of a query could become, as JSON."""
    return JSONResponse(complete(session, app_state.catalogue, text), headers={"Cache-Control": "private, no-store"})


@router.post("/ui/jobs/columns", dependencies=[SameOriginForm])
def choose_columns(
    session: WriteSession, caller: PageCaller, form: Annotated[ListState, Depends(_columns_form)]
) -> Response:
    """Keep the columns that the list has for this user."""
    saved_views.save(session, caller.id, saved_views.COLUMNS, form.url(q="", sort=""))
    return RedirectResponse(form.url(cols=()), 303)


@router.post("/ui/views", dependencies=[SameOriginForm])
def change_views(session: WriteSession, caller: PageCaller, texts: FormTexts) -> Response:
    """Keep a view under a name, or delete it."""
    name, address = texts.get("name", "").strip(), texts.get("address", "")
    if not name:
        raise SpecInvalid("Give the view a name.", field="name")
    if texts.get("action") == "delete":
        saved_views.remove(session, caller.id, name)
    else:
        saved_views.save(session, caller.id, name, address)
    return RedirectResponse(address if address.startswith("/ui/") else "/ui/jobs", 303)
