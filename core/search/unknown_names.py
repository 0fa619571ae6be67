import difflib
from typing import NamedTuple

from sqlalchemy.orm import Session

from core.db.models.job_params import JobParam
from core.db.models.metrics import LastMetric
from core.jobs.tracking import params
from core.search.computed_columns import METRIC_PREFIX, PARAM_PREFIX
from core.search.query_text import Term, parse_terms, quote

_COMPUTED = frozenset({"created", "finished", "duration", "cost"})
_TABLES: dict[str, type[JobParam | LastMetric]] = {PARAM_PREFIX: JobParam, METRIC_PREFIX: LastMetric}
_MOST_OFFERED = 8


class UnknownName(NamedTuple):
    """A term whose name no job has as a parameter or a metric, and names that jobs have, the nearest if any is near."""

    term: Term
    offered: list[str]

    def __str__(self) -> str:
        offered = f"Jobs have: {', '.join(self.offered)}." if self.offered else "Jobs have none yet."
        text = quote(self.term.text, always=True)
        return (
            f"No job has a parameter or metric {self.term.field[:80]!r}. {offered} To search for the text, write "
            f"{text[:80]}."
        )


def find_unknown_names(session: Session, text: str) -> list[UnknownName]:
    unknown = []
    for term in parse_terms(text):
        if term.operator in {"", ":"} or term.field in _COMPUTED:
            continue
        prefix = next((prefix_of_table for prefix_of_table in _TABLES if term.field.startswith(prefix_of_table)), "")
        tables = [table for of, table in _TABLES.items() if prefix in {"", of}]
        if not any(params.exists(session, table, term.field.removeprefix(prefix)) for table in tables):
            names = sorted({prefix + name for table in tables for name in params.names(session, table)})
            folded = {_fold(name): name for name in names}
            near = [folded[name] for name in difflib.get_close_matches(_fold(term.field), folded)]
            unknown.append(UnknownName(term, near or names[:_MOST_OFFERED]))
    return unknown


def _fold(name: str) -> str:
    return name.casefold().replace("-", "_")
