"""Orders of lists of jobs, and the conditions of the rows after and before a cursor."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Integer, SQLColumnExpression, UnaryExpression, and_, cast, or_, select
from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import CursorInvalid

_CURSOR_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Ordering:
    """An order by the values of an expression, then newest first; jobs without a value come last."""

    expression: SQLColumnExpression[Any]
    descending: bool

    def columns(self, *, backwards: bool) -> list[UnaryExpression[Any]]:
        keys = [(self._missing, False), (self.expression, self.descending), (Job.seq, True)]
        return [key.desc() if descending != backwards else key.asc() for key, descending in keys]

    def beyond(self, session: Session, seq: int, *, backwards: bool) -> ColumnElement[bool]:
        row = session.execute(select(self._missing, self.expression).where(Job.seq == seq)).one_or_none()
        if row is None:
            raise CursorInvalid(
                "The job at this page cursor no longer exists. Start again with the first page.", field="after"
            )
        missing, value = row
        later = Job.seq > seq if backwards else Job.seq < seq
        if missing:
            same = and_(self._missing == 1, later)
            return or_(self._missing == 0, same) if backwards else same
        below = self.descending != backwards
        past = self.expression < value if below else self.expression > value
        within = and_(self._missing == 0, or_(past, and_(self.expression == value, later)))
        return within if backwards else or_(self._missing == 1, within)

    @property
    def _missing(self) -> ColumnElement[int]:
        return cast(self.expression.is_(None), Integer)


def parse_cursor(after: str, field: str) -> int:
    if not after.isascii() or not after.isdigit() or len(after) > _CURSOR_DIGITS:
        raise CursorInvalid(
            "This is not a page cursor. Send the cursor from a page's response, unchanged.", field=field
        )
    return int(after)
