"""Pages of lists that are short enough to be counted: each begins at the number of its first row."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar
from urllib.parse import urlencode

from fastapi import Query
from pydantic import BaseModel, Field
from sqlalchemy import Select, SQLColumnExpression, func, select
from sqlalchemy.orm import Session

from core.errors import SpecInvalid
from service.dashboard.lists.job_list import Column, next_order

T = TypeVar("T")


class PageQuery(BaseModel):
    at: int = Field(1, ge=1, le=1_000_000, description="number of the first row")
    sort: str = Field("", max_length=20, description="name of a column, with - before it in descending order")


RequestedPage = Annotated[PageQuery, Query()]


@dataclass(frozen=True, slots=True)
class NumberedPage(Generic[T]):
    rows: Sequence[T]
    at: int
    sort: str
    orders: Collection[str]
    total: int
    size: int

    def url(self, sort: str, at: int = 0) -> str:
        return f"?{urlencode({name: value for name, value in {'sort': sort, 'at': at}.items() if value})}"

    def order(self, name: str, *, numeric: bool) -> tuple[str, str]:
        """Return where a column's title leads, and the order by it now."""
        sort, order = next_order(self.sort, Column(name, "", name, numeric))
        return self.url(sort), order

    @property
    def previous_url(self) -> str:
        return self.url(self.sort, max(1, self.at - self.size)) if self.at > 1 else ""

    @property
    def next_url(self) -> str:
        return self.url(self.sort, self.at + self.size) if self.at + len(self.rows) <= self.total else ""


def read_page(
    session: Session,
    listed: Select[T],
    orders: Mapping[str, SQLColumnExpression[Any]],
    requested: PageQuery,
    size: int,
) -> NumberedPage[T]:
    """Return a page of all rows of a query in the order of one of these expressions, by default newest first.

    Rows without a value come last.
    """
    given = requested.sort or "-created"
    name = given.removeprefix("-")
    if name not in orders:
        raise SpecInvalid(f"This list is not sorted by {name!r}. Columns: {', '.join(orders)}.", field="sort")
    key = orders[name].desc() if given.startswith("-") else orders[name].asc()
    ordered = listed.order_by(key.nulls_last(), orders["created"].desc())
    total = session.scalar(select(func.count()).select_from(listed.subquery()))
    rows = session.scalars(ordered.offset(requested.at - 1).limit(size)).all()
    return NumberedPage(rows, requested.at, requested.sort, orders.keys(), total or 0, size)
