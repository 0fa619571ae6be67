"""TOML catalogues: a packaged file with one table per entry, and an administrator's file of changes."""

import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import SettingsInvalid, SpecInvalid


class CatalogueEntry(BaseModel):
    """An entry of a catalogue; unknown keys in its table are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="what users say")
    aliases: tuple[str, ...] = Field((), description="other names of the same")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


E = TypeVar("E", bound=CatalogueEntry)
_parse_toml = cache(tomllib.loads)  # the packaged files are read several times; nobody may change what it returns


def _unchanged(name: str) -> str:
    return name


@dataclass(frozen=True, slots=True)
class TomlCatalogue(Generic[E]):
    what: str
    setting: str  # setting for the file of changes, as `group.field`
    entry: type[E]  # model of an entry; the table's name is its `name`
    key: Callable[[str], str] = _unchanged
    sourced: tuple[str, str] | None = None  # a value, and the one that names its source

    def read(self, path: Path, changes: Path | None, first: dict[str, dict[str, Any]] | None = None) -> list[E]:
        """Read the entries, in the order of the files.

        `changes`: changes single values of an entry of the same name, or adds entries; `first`: tables before those.
        """
        tables = (first or {}) | self._read_tables(path)
        for name, table in self._read_tables(changes).items() if changes else ():
            stored_name = next((old for old in tables if self.key(old) == self.key(name)), name)
            source = {}
            if changes and self.sourced and self.sourced[0] in table:
                source = {self.sourced[1]: f"{changes.name}, no date"}  # the old source has another value
            tables[stored_name] = tables.get(stored_name, {}) | source | table
        where = f"{path} and {changes}" if changes else str(path)
        return [self._parse_entry(name, table, where) for name, table in tables.items()]

    def by_name(self, entries: Iterable[E]) -> dict[str, E]:
        """Index the entries by all their names and aliases, normalized by `key`."""
        by_key: dict[str, E] = {}
        for entry in entries:
            for name in entry.names:
                other = by_key.setdefault(self.key(name), entry)
                if other is not entry:
                    raise SpecInvalid(
                        f"{self.what} {entry.name!r}: the name {name!r} already means {other.name!r}; change one of "
                        "them",
                        field=self.setting,
                    )
        return by_key

    def _read_tables(self, path: Path) -> dict[str, dict[str, Any]]:
        try:
            tables = _parse_toml(path.read_text("utf-8"))
        except OSError as error:
            variable = f"GRADIENT_{self.setting.replace('.', '__').upper()}"
            raise SettingsInvalid(f"{path}: {error.strerror}; point {variable} at a readable file") from error
        except (ValueError, RecursionError) as error:
            raise SettingsInvalid(f"{path}: not valid TOML: {error}") from error
        for name, table in tables.items():
            if not isinstance(table, dict):
                raise SettingsInvalid(f"{path}: {name!r} is not a table; write each {self.what} as [{name!r}]")
        return tables

    def _parse_entry(self, name: str, table: dict[str, Any], where: str) -> E:
        try:
            return self.entry.model_validate(table | {"name": name})
        except ValidationError as error:
            first = error.errors()[0]
            value = ".".join(map(str, first["loc"]))
            raise SettingsInvalid(f"{where}: {self.what} {name!r}, {value}: {first['msg']}") from error
