"""Terms that a query could go on with, of the fields, states, names and values that there are."""

import re
from collections.abc import Iterable, Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.catalogue.machine_types import Catalogue
from core.db.models.job_params import JobParam
from core.db.models.jobs import Job, Project
from core.db.models.metrics import LastMetric
from core.jobs.tracking import params
from core.search.computed_columns import PARAM_PREFIX
from core.search.conditions import DIVERGED, STATES
from core.search.query_text import quote

FIELDS = (
    "state",
    "is",
    "project",
    "machine",
    "tag",
    "name",
    "command",
    "id",
    "array",
    "schedule",
    "comparison",
    "reason",
    "created",
    "finished",
)
"""Fields of the language whose values are texts."""
_COMPARED = ("created<", "created>", "finished<", "finished>", "duration>", "duration<", "cost>", "cost<")
_TIMES = ("1h", "8h", "1d", "7d", "30d", "yesterday", "today")
_DAYS = "today", "yesterday"
_WORDS = {"state": tuple(STATES), "is": (DIVERGED,), "created": _DAYS, "finished": _DAYS}
_MOST = 20
_NEWEST = 300  # jobs of which the tags are offered
_TERM = re.compile(r"(-?)(\w+):(.*)\Z", re.DOTALL)
_COMPARISON = re.compile(r"(-?)([^<>=:]+)(<=|>=|<|>|=)(.*)\Z", re.DOTALL)


def complete(session: Session, catalogue: Catalogue, text: str) -> list[str]:
    """Return terms that the last term of a query, as far as it is typed, could become."""
    if term := _TERM.match(text):
        before, _, part = term[3].rpartition(",")
        start = f"{term[1]}{term[2]}:{before}{',' if before else ''}"
        candidates: Iterable[str] = _values(session, catalogue, term[2].lower())
    elif term := _COMPARISON.match(text):
        _, name, operator, part = term.groups()
        start = text.removesuffix(part)
        candidates = _TIMES if name in {"created", "finished"} else _param_values(session, name, operator)
    else:
        return _names(session, text)
    wanted = part.strip('"').casefold()
    return [start + quote(candidate) for candidate in _nearest(candidates, wanted) if candidate.casefold() != wanted]


def _names(session: Session, text: str) -> list[str]:
    negated = "-" if text.startswith("-") else ""
    wanted = text.removeprefix("-").casefold()
    fields = [f"{field}:" for field in FIELDS if field.startswith(wanted)]
    prefixed = wanted.startswith(PARAM_PREFIX)
    of_params = [f"{PARAM_PREFIX if prefixed else ''}{name}" for name in params.names(session, JobParam)]
    of_metrics = [] if prefixed else params.names(session, LastMetric)
    compared = [name for name in _COMPARED if name.startswith(wanted)]
    named = [
        *(f"{name}=" for name in _nearest(of_params, wanted)),
        *(f"{name}<" for name in _nearest(of_metrics, wanted)),
    ]
    exact = [f"{wanted}{sign}" for sign in ("<", ">", "<=", ">=", "=")] if wanted in {*of_params, *of_metrics} else []
    return [negated + term for term in dict.fromkeys([*exact, *fields, *compared, *named])][:_MOST]


def _values(session: Session, catalogue: Catalogue, field: str) -> Sequence[str]:
    if field in _WORDS:
        return _WORDS[field]
    if field == "machine":
        return [machine_type.name for machine_type in catalogue]
    if field == "project":
        return list(session.scalars(select(Project.name).where(Project.deleted_at.is_(None)).order_by(Project.name)))
    if field == "tag":
        newest = select(Job.spec_json["tags"]).where(Job.deleted_at.is_(None)).order_by(Job.seq.desc()).limit(_NEWEST)
        return sorted({tag for tags in session.scalars(newest) for tag in tags or ()})
    return ()


def _param_values(session: Session, name: str, operator: str) -> Sequence[str]:
    if operator != "=":
        return ()
    named = JobParam.name == name.removeprefix(PARAM_PREFIX)
    texts = select(JobParam.text).where(named, JobParam.text.is_not(None)).distinct().order_by(JobParam.text)
    numbers = select(JobParam.number).where(named, JobParam.number.is_not(None)).distinct().order_by(JobParam.number)
    numbers_as_text = [f"{number:g}" for number in session.scalars(numbers.limit(_MOST)) if number is not None]
    return [*(text for text in session.scalars(texts.limit(_MOST)) if text), *numbers_as_text]


def _nearest(names: Iterable[str], wanted: str) -> list[str]:
    """Return the names that have the text in them, those that begin with it first."""
    fitting = [name for name in names if wanted in name.casefold()]
    return sorted(fitting, key=lambda name: not name.casefold().startswith(wanted))[:_MOST]
