"""Rows as plain objects: SQLAlchemy takes longer to load one as an object that it watches than to read it."""

from collections.abc import Sequence
from functools import cached_property
from types import FunctionType
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import Column, inspect

from core.db.database import Base

T = TypeVar("T", bound=Base)


class LightRows(Generic[T]):
    """Makes objects with the attributes and properties of a model, which cannot be changed."""

    def __init__(self, model: type[T]) -> None:
        self._model = model

    @cached_property
    def columns(self) -> list[Column[Any]]:
        return [cast("Column[Any]", attribute.columns[0]) for attribute in inspect(self._model).column_attrs]

    def make(self, values: Sequence[Any]) -> T:
        row: Any = object.__new__(self._class)
        row.__dict__.update(zip(self._names, values, strict=True))
        return cast("T", row)

    @cached_property
    def _names(self) -> list[str]:
        return [attribute.key for attribute in inspect(self._model).column_attrs]

    @cached_property
    def _class(self) -> type:
        attributes = vars(self._model).items()
        shared = {name: value for name, value in attributes if isinstance(value, property | FunctionType)}
        members = {name: value for name, value in shared.items() if not name.startswith("__")}
        return type(f"{self._model.__name__}Row", (), members | {"__setattr__": _refuse_change})


def _refuse_change(row: object, name: str, _value: object) -> None:
    raise AttributeError(f"{type(row).__name__}.{name}: the object of a row that is only read; see queries.get_row")
