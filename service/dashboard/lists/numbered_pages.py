"""Pages of lists that are short enough to be counted: each begins at the number of its first row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar

from fastapi import Query
from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

T = TypeVar("T")
FirstRow = Annotated[int, Query(ge=1, le=1_000_000, description="number of the first row")]


@dataclass(frozen=True, slots=True)
class NumberedPage(Generic[T]):
    rows: Sequence[T]
    at: int
    total: int
    size: int

    @property
    def previous_url(self) -> str:
        return f"?at={max(1, self.at - self.size)}" if self.at > 1 else ""

    @property
    def next_url(self) -> str:
        return f"?at={self.at + self.size}" if self.at + len(self.rows) <= self.total else ""


def read_page(session: Session, listed: Select[T], at: int, size: int) -> NumberedPage[T]:
    """Return the rows of a query from this number on. `at`: 1 for the first row."""
    total = select(func.count()).select_from(listed.order_by(None).subquery())
    rows = session.scalars(listed.offset(at - 1).limit(size)).all()
    return NumberedPage(rows, at, session.scalar(total) or 0, size)
