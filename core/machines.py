"""The machine types jobs can ask for: what they are, what they cost, what runs them.

The shipped list is `machines.toml` beside this file; an administrator's file of the same layout changes or adds to it.
"""

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import MachineTypeUnknown, SpecInvalid
from core.opening import Opening

PACKAGED = Path(__file__).with_name("machines.toml")

_NEAREST = 3
_NEAR_ENOUGH = 0.5


class MachineType(BaseModel):
    """One machine type.

    A device is one GPU, one TPU chip or, on a CPU type, the whole host.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="what users ask for")
    aliases: tuple[str, ...] = Field((), description="other names of the same type")
    backend: Literal["docker", "tpu", "mock"] = Field(description="what runs its jobs")
    kind: Literal["cpu", "gpu", "tpu"] = Field(description="what does the work")
    accelerator: str = Field(min_length=1, description="device model, in words")
    tpu_type: str | None = Field(None, description="the cloud's name of the TPU slice; TPU types only")
    count: int = Field(ge=1, description="devices in the machine")
    replicas: int = Field(ge=1, description="workers of a data-parallel program that uses the whole machine")
    cpus: int | None = Field(None, ge=1, description="virtual CPUs of the host, where the type fixes them")
    memory_gb: float = Field(gt=0, description="GB, all devices together (CPU types: host memory)")
    memory_bandwidth_gb_per_s: float = Field(gt=0, description="GB/s of one device's memory")
    tflops: dict[str, float] = Field(
        min_length=1,
        description="peak 10^12 operations/s by precision, all devices together, without sparsity",
    )
    price_per_hour: float = Field(gt=0, description="US dollars for the whole machine")
    price_source: str = Field(min_length=1, description="whose list price, and when")
    spec_source: str = Field(min_length=1, description="where the other figures come from")
    docker: Opening = Field(Opening(), description="what its containers may beyond the default")

    @property
    def cards(self) -> int:
        """Accelerator cards that a job has for itself on the host it runs on; a TPU is no card of the host."""
        return self.count if self.kind == "gpu" else 0

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)


class Catalogue:
    """Every machine type, in the order of the file.

    Args:
        types: The types; names and aliases must all differ, whatever their case.

    Raises:
        SpecInvalid: Two types share a name or alias.
    """

    def __init__(self, types: list[MachineType]) -> None:
        self._types = tuple(types)
        self._by_name: dict[str, MachineType] = {}
        for machine_type in types:
            for name in machine_type.names:
                other = self._by_name.setdefault(_key(name), machine_type)
                if other is not machine_type:
                    raise SpecInvalid(
                        f"machine type {machine_type.name!r}: the name {name!r} already means {other.name!r}; "
                        "change one of them",
                        field="machines.file",
                    )

    @classmethod
    def load(cls, path: Path = PACKAGED, override_path: Path | None = None) -> "Catalogue":
        """Reads the list, and an administrator's changes on top of it.

        Args:
            path: The full list.
            override_path: Tables that change single values of a type of the same name, or add types.

        Raises:
            SpecInvalid: A file is missing, is no TOML or has an impossible value; the message says where.
        """
        tables = _read(path)
        for name, table in _read(override_path).items() if override_path else ():
            known = next((old for old in tables if _key(old) == _key(name)), name)
            tables[known] = tables.get(known, {}) | table
        where = f"{path} and {override_path}" if override_path else str(path)
        return cls([_machine_type(name, table, where) for name, table in tables.items()])

    def get(self, name: str) -> MachineType:
        """The type with this name or alias, whatever the case.

        Raises:
            MachineTypeUnknown: There is none; the message names the nearest ones.
        """
        if found := self._by_name.get(_key(name)):
            return found
        near = difflib.get_close_matches(_key(name)[:100], self._by_name, n=_NEAREST, cutoff=_NEAR_ENOUGH)
        # Aliases of one type count once.
        names = list(dict.fromkeys(self._by_name[key].name for key in near))
        nearest = f" Did you mean {' or '.join(map(repr, names))}?" if names else ""
        raise MachineTypeUnknown(
            f"There is no machine type {name[:100]!r}.{nearest} `gradient-cli machine-types` lists them all.",
            field="machineType",
        )

    def __iter__(self) -> Iterator[MachineType]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


def _key(name: str) -> str:
    return " ".join(name.split()).casefold()


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise SpecInvalid(f"{path}: {error.strerror}; point GRADIENT_MACHINES__FILE at a readable file") from error
    except ValueError as error:
        raise SpecInvalid(f"{path}: not valid TOML: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SpecInvalid(f"{path}: {name!r} is no machine type; every entry is a table, [{name!r}]")
    return tables


def _machine_type(name: str, table: dict[str, Any], where: str) -> MachineType:
    try:
        return MachineType.model_validate(table | {"name": name})
    except ValidationError as error:
        first = error.errors()[0]
        value = ".".join(map(str, first["loc"]))
        raise SpecInvalid(f"{where}: machine type {name!r}, {value}: {first['msg']}") from error
