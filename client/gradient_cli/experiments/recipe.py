from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gradient_cli.errors import UsageError

_FOLDER = os.path.dirname(__file__)
_RECIPES = os.path.join(_FOLDER, "recipes")
_PROGRAMS = os.path.join(_FOLDER, "programs")


@dataclass(frozen=True)
class Member:
    name: str
    description: str
    scaled: str
    full: str
    machine_types: list[str] | None = None  # those that it runs on alone; None: all
    cpus: float | None = None  # limit of CPU cores


@dataclass(frozen=True)
class Ratio:
    """A published ratio, or a difference, of one figure of two members, of two machine types, or of both."""

    text: str
    figure: str
    published: float
    of: tuple[str | None, str | None]  # member and machine type of the dividend; either is None if it stays the same
    over: tuple[str | None, str | None]  # those of the divisor
    difference: bool


@dataclass(frozen=True)
class Recipe:
    name: str
    title: str
    summary: str
    source: Mapping[str, Any]  # `title`, `author`, `year` and, if it is known, `url` of the publication
    machine_types: list[str]
    container: str
    command: str  # command of the jobs, before a member's arguments; `{NAME}` is a data set
    metric: str | None  # metric that tells how good a result is, or None
    scaled: str
    full: str
    members: list[Member]
    columns: list[str]
    rows: list[list[str]]
    notes: list[str]
    ratios: list[Ratio]  # published statements to hold beside the measured ones

    @property
    def workspace(self) -> str | None:
        """Folder with the program of the jobs; None: the container has it."""
        folder = os.path.join(_PROGRAMS, self.name)
        return folder if os.path.isdir(folder) else None

    def command_of(self, member: Member, data: Mapping[str, str], *, full: bool) -> str:
        """Return the command of a member, with other data sets in place of the recipe's."""
        command = f"{self.command} {member.full if full else member.scaled}".strip()
        return command.format_map(_DataSets(data))

    def members_by_machine(self, machine_types: Sequence[str]) -> list[tuple[Member, str]]:
        pairs = [(member, machine) for member in self.members for machine in machine_types]
        return [(member, machine) for member, machine in pairs if machine in (member.machine_types or [machine])]

    def data_sets(self) -> set[str]:
        used = _DataSets({})
        for member in self.members:
            f"{self.command} {member.scaled} {member.full}".format_map(used)
        return used.used


class _DataSets(dict):  # type: ignore[type-arg]  # subscripted base classes would need a newer Python
    """Data sets by the recipe's name for them; one that is not replaced stands for itself."""

    def __init__(self, replaced: Mapping[str, str]) -> None:
        super().__init__(replaced)
        self.used: set[str] = set()

    def __missing__(self, name: str) -> str:
        self.used.add(name)
        return name


def names() -> list[str]:
    return sorted(name[:-5] for name in os.listdir(_RECIPES) if name.endswith(".toml"))


def load(name: str) -> Recipe:
    names_known = names()
    if name not in names_known:
        import difflib

        near = difflib.get_close_matches(name, names_known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are {', '.join(names_known)}."
        raise UsageError(f"no experiment is called {name!r}", hint=hint)
    if sys.version_info >= (3, 11):
        import tomllib  # novermin
    else:
        import tomli as tomllib
    with open(os.path.join(_RECIPES, f"{name}.toml"), "rb") as file:
        read = tomllib.load(file)
    published = read.get("published", {})
    return Recipe(
        name=name,
        title=read["title"],
        summary=read["summary"],
        source=read["source"],
        machine_types=read["machineTypes"],
        container=read["container"],
        command=read["command"],
        metric=read.get("metric"),
        scaled=read["scaled"],
        full=read["full"],
        members=[Member(machine_types=member.pop("machineTypes", None), **member) for member in read["members"]],
        columns=published.get("columns", []),
        rows=[[str(cell) for cell in row] for row in published.get("rows", [])],
        notes=published.get("notes", []),
        ratios=[_ratio(ratio) for ratio in read.get("ratios", [])],
    )


def _ratio(read: Mapping[str, Any]) -> Ratio:
    of, over = ((side.get("member"), side.get("machineType")) for side in (read["of"], read["over"]))
    return Ratio(read["text"], read["figure"], read["published"], of, over, read.get("difference", False))
