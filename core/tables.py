"""Lists that an administrator may change: a shipped TOML file of one table per entry, and a file of changes to it."""

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import SpecInvalid


class Entry(BaseModel):
    """An entry of such a list; unknown values in its table are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="what users say")
    aliases: tuple[str, ...] = Field((), description="other names of the same")

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)


E = TypeVar("E", bound=Entry)


def _as_written(name: str) -> str:
    return name


@dataclass(frozen=True, slots=True)
class TableList(Generic[E]):
    """What one kind of list is called and what its entries are.

    Attributes:
        what: An entry, in words.
        setting: Where the file of changes is set, as `group.field`.
        entry: What a table must be; the table's name is its `name`.
        key: What of a name tells it from others.
    """

    what: str
    setting: str
    entry: type[E]
    key: Callable[[str], str] = _as_written

    def read(self, path: Path, changes: Path | None) -> list[E]:
        """The entries, in the order of the files.

        Args:
            path: The full list.
            changes: Tables that change single values of an entry of the same name, or add entries.

        Raises:
            SpecInvalid: A file is missing, is no TOML or has an impossible value; the message says where.
        """
        tables = self._tables(path)
        for name, table in self._tables(changes).items() if changes else ():
            known = next((old for old in tables if self.key(old) == self.key(name)), name)
            tables[known] = tables.get(known, {}) | table
        where = f"{path} and {changes}" if changes else str(path)
        return [self._checked(name, table, where) for name, table in tables.items()]

    def by_name(self, entries: Iterable[E]) -> dict[str, E]:
        """The entries by every name and alias of theirs, as `key` has it.

        Raises:
            SpecInvalid: Two of them share one.
        """
        found: dict[str, E] = {}
        for entry in entries:
            for name in entry.names:
                other = found.setdefault(self.key(name), entry)
                if other is not entry:
                    raise SpecInvalid(
                        f"{self.what} {entry.name!r}: the name {name!r} already means {other.name!r}; change one of "
                        "them",
                        field=self.setting,
                    )
        return found

    def _tables(self, path: Path) -> dict[str, dict[str, Any]]:
        try:
            with path.open("rb") as file:
                tables = tomllib.load(file)
        except OSError as error:
            variable = f"GRADIENT_{self.setting.replace('.', '__').upper()}"
            raise SpecInvalid(f"{path}: {error.strerror}; point {variable} at a readable file") from error
        except ValueError as error:
            raise SpecInvalid(f"{path}: not valid TOML: {error}") from error
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise SpecInvalid(f"{path}: {name!r} is no {self.what}; every entry is a table, [{name!r}]")
        return tables

    def _checked(self, name: str, table: dict[str, Any], where: str) -> E:
        try:
            return self.entry.model_validate(table | {"name": name})
        except ValidationError as error:
            first = error.errors()[0]
            value = ".".join(map(str, first["loc"]))
            raise SpecInvalid(f"{where}: {self.what} {name!r}, {value}: {first['msg']}") from error
