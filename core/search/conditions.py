import difflib
import math
import operator
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, ScalarSelect, SQLColumnExpression, and_, false, func, not_, or_, select
from sqlalchemy.orm import Session, aliased

from core.catalogue.machine_types import Catalogue
from core.db.models.comparisons import ComparisonJob
from core.db.models.job_params import JobParam
from core.db.models.jobs import Attempt, Job, Project
from core.db.models.metrics import LastMetric
from core.errors import SpecInvalid
from core.formatting import parse_duration
from core.jobs.costs.amounts import cost, duration
from core.jobs.queries import array_condition, contains_text, has_any_tag, id_condition, machine_condition
from core.jobs.spec.params import is_number
from core.jobs.states import JobState
from core.search.computed_columns import METRIC_PREFIX, PARAM_PREFIX
from core.search.query_text import Term, parse_terms, query_error

STATES = {
    "pending": (JobState.QUEUED, JobState.STARTING),
    "running": (JobState.RUNNING, JobState.FINISHING),
    "kept": (JobState.KEPT,),
    "succeeded": (JobState.SUCCEEDED,),
    "failed": (JobState.FAILED,),
    "error": (JobState.FAILED,),
    "cancelled": (JobState.CANCELLED,),
}
"""States by the words for them."""
DIVERGED = "diverged"
FEW = 2000
_DAYS = {"today": 0, "yesterday": 1}
_LONGEST_DAY = len("2026-01-31")
_NOT_FINITE = {"nan": None, "inf": math.inf, "infinity": math.inf, "-inf": -math.inf, "-infinity": -math.inf}
"""Last values of metrics, as they are stored, by the words for them."""
_EXIT_CODE = {"failed": True, "error": False}

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "=": operator.eq,
}

Build = Callable[[Term, str], ColumnElement[bool]]


def build_conditions(session: Session, catalogue: Catalogue, text: str) -> list[ColumnElement[bool]]:
    terms = parse_terms(text)
    builder = _Builder(session, catalogue, in_one_state=any(_is_one_state(term) for term in terms))
    return [builder.build(term) for term in terms]


def _is_one_state(term: Term) -> bool:
    wanted = [STATES.get(value.lower(), ()) for value in term.values]
    return term.field == "state" and term.operator == ":" and not term.negated and len(sum(wanted, ())) == 1


class _Builder:
    def __init__(self, session: Session, catalogue: Catalogue, *, in_one_state: bool) -> None:
        self._session = session
        self._in_one_state = in_one_state
        self._dialect = session.get_bind().dialect.name
        self._catalogue = catalogue
        self._fields: dict[str, Build] = {
            "state": self._state,
            "is": self._is,
            "project": self._project,
            "machine": self._machine,
            "tag": lambda _term, value: has_any_tag(session, [value]),
            "name": lambda _term, value: _named(value),
            "command": lambda _term, value: Job.spec_text("command").icontains(value, autoescape=True),
            "id": lambda _term, value: id_condition(value),
            "array": lambda _term, value: array_condition(value),
            "schedule": lambda _term, value: Job.schedule_id == value,
            "sweep": lambda _term, value: array_condition(value),
            "comparison": lambda _term, value: _compared(value),
            "reason": lambda _term, value: Job.reason == value,
            "created": lambda term, value: self._on_day(term, Job.created_at, value),
            "finished": lambda term, value: self._on_day(term, Job.finished_at, value),
        }

    def build(self, term: Term) -> ColumnElement[bool]:
        condition = self._condition(term)
        return not_(func.coalesce(condition, false())) if term.negated else condition

    def _condition(self, term: Term) -> ColumnElement[bool]:
        if term.operator == ":":
            if term.field not in self._fields:
                raise query_error(term, self._unknown_field(term))
            field = self._fields[term.field]
            return or_(false(), *(field(term, value) for value in term.values))
        value = term.values[0]
        if not term.operator:
            return contains_text(value)
        if term.field in {"created", "finished"}:
            return self._time(term, value)
        if term.field == "duration":
            return _compare(duration(self._dialect), term.operator, _seconds(term, value))
        if term.field == "cost":
            return _compare(cost(self._dialect), term.operator, _number(term, value.removeprefix("$")))
        if term.field in self._fields and not value.isnumeric():
            raise query_error(term, f"Write {term.field}:{value[:80]}, or {PARAM_PREFIX}{term.field} for a parameter.")
        return or_(*(self._has(*has) for has in _stored_values(term, value)))

    def _has(self, table: type[JobParam | LastMetric | Attempt], meets: ColumnElement[bool]) -> ColumnElement[bool]:
        """Return the condition that a job has such a row, read from its index if few jobs have one."""
        jobs = select(table.job_id).where(meets)
        counted = select(func.count()).select_from(jobs.limit(FEW).subquery())
        if (self._session.scalar(counted) or 0) < FEW:
            return Job.id.in_(jobs)
        return jobs.where(table.job_id == Job.id).exists()

    def _unknown_field(self, term: Term) -> str:
        near = difflib.get_close_matches(term.field, self._fields, 1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        names = ", ".join(self._fields)
        return f"{term.field!r} is not a field. Fields: {names}.{hint} Put text with a colon in quotation marks."

    def _state(self, term: Term, value: str) -> ColumnElement[bool]:
        word = value.lower()
        if word == "stopped":  # the original service's word for success, and everybody's for a job that was stopped
            raise query_error(term, "Succeeded or cancelled? Write state:succeeded or state:cancelled.")
        if word not in STATES:
            raise query_error(term, f"{value[:80]!r} is not a state. States: {', '.join(STATES)}.")
        states = Job.state.in_(STATES[word])
        if word not in _EXIT_CODE:
            return states
        return and_(states, Job.exit_code.is_not(None) if _EXIT_CODE[word] else Job.exit_code.is_(None))

    def _is(self, term: Term, value: str) -> ColumnElement[bool]:
        if value.lower() != DIVERGED:
            raise query_error(term, f"{value[:80]!r} is not a mark of jobs. Write is:{DIVERGED}.")
        return self._has(Attempt, and_(Attempt.diverged.is_not(None), Attempt.attempt == _last_attempt()))

    def _project(self, _term: Term, value: str) -> ColumnElement[bool]:
        named = select(Project.id).where(or_(Project.name == value, Project.id == value), Project.deleted_at.is_(None))
        return Job.project_id == named.order_by(Project.name != value).limit(1).scalar_subquery()

    def _machine(self, term: Term, value: str) -> ColumnElement[bool]:
        try:
            name = self._catalogue.get(value).name
        except SpecInvalid as error:
            raise query_error(term, error.message) from None
        return machine_condition(self._session, name, in_one_state=self._in_one_state)

    def _time(self, term: Term, value: str) -> ColumnElement[bool]:
        column = Job.created_at if term.field == "created" else Job.finished_at
        try:
            if (age := parse_duration(value)) is not None:
                if term.operator == "=":
                    raise query_error(term, "Ages need < or >.")
                # `created<2d`: its age is below two days, so its time is after that moment.
                moment = datetime.now(UTC) - timedelta(seconds=age)
                return _compare(column, term.operator.translate(str.maketrans("<>", "><")), moment)
            first, last = _span(value)
            if term.operator == "=":
                return column.between(first, last)
            return _compare(column, term.operator, first if term.operator in {"<", ">="} else last)
        except (ValueError, OverflowError):
            expected = "an age such as 30m, 2h or 7d, a date such as 2026-01-31, today or yesterday"
            raise query_error(term, f"{value[:80]!r} is not {expected}.") from None

    def _on_day(self, term: Term, column: SQLColumnExpression[Any], value: str) -> ColumnElement[bool]:
        try:
            return column.between(*_span(value))
        except (ValueError, OverflowError):
            expected = "a day such as 2026-01-31, today or yesterday"
            raise query_error(term, f"{value[:80]!r} is not {expected}. Ages need < or >.") from None


def _stored_values(term: Term, value: str) -> Iterator[tuple[type[JobParam | LastMetric], ColumnElement[bool]]]:
    """Yield the rows that meet a term: parameters and last values of metrics, unless it is about one kind of them."""
    metric, param = term.field.removeprefix(METRIC_PREFIX), term.field.removeprefix(PARAM_PREFIX)
    word = value.lower()
    if term.operator == "=" and not is_number(value) and (metric == term.field or word in _NOT_FINITE):
        if metric == term.field:
            yield JobParam, and_(JobParam.name == param, JobParam.text == value)
        if param == term.field and word in _NOT_FINITE:
            yield LastMetric, and_(LastMetric.name == metric, LastMetric.value == _NOT_FINITE[word])
        return
    number = _number(term, value)
    if metric == term.field:
        meets = _compare(JobParam.number, term.operator, number)
        meets = or_(meets, JobParam.text == value) if term.operator == "=" else meets
        yield JobParam, and_(JobParam.name == param, meets)
    if param == term.field:
        yield LastMetric, and_(LastMetric.name == metric, _compare(LastMetric.value, term.operator, number))


def _span(value: str) -> tuple[datetime, datetime]:
    """Return the first and the last moment of what a date stands for: a day in UTC, or a time."""
    if (ago := _DAYS.get(value.lower())) is not None:
        first = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=ago)
    else:
        moment = datetime.fromisoformat(value)
        first = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
        if len(value) > _LONGEST_DAY:
            return first, first
    return first, first + timedelta(days=1, microseconds=-1)


def _seconds(term: Term, value: str) -> float:
    seconds = parse_duration(value)
    return _number(term, value) if seconds is None else seconds


def _number(term: Term, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise query_error(term, f"{value[:80]!r} is not a number; put text with {term.operator!r} in quotation marks.")
    return number


def _last_attempt() -> ScalarSelect[int]:
    later = aliased(Attempt)
    return select(func.max(later.attempt)).where(later.job_id == Attempt.job_id).correlate(Attempt).scalar_subquery()


def _compared(comparison_id: str) -> ColumnElement[bool]:
    return Job.id.in_(select(ComparisonJob.job_id).where(ComparisonJob.comparison_id == comparison_id))


def _named(value: str) -> ColumnElement[bool]:
    """Find jobs by name: those without one, which are shown by their script's, by their command."""
    in_command = Job.spec_text("command").icontains(value, autoescape=True)
    return or_(Job.name.icontains(value, autoescape=True), and_(Job.name.is_(None), in_command))


def _compare(column: SQLColumnExpression[Any], symbol: str, value: float | datetime) -> ColumnElement[bool]:
    condition: ColumnElement[bool] = _COMPARISONS[symbol](column, value)
    return condition
