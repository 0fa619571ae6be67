"""The catalogue of machine types: devices, prices and backends."""

import difflib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from core.catalogue import host_measurement
from core.catalogue.backends import BACKENDS
from core.catalogue.container_privileges import ContainerPolicy
from core.catalogue.slurm import SlurmRequest
from core.catalogue.toml_file import CatalogueEntry, TomlCatalogue
from core.errors import MachineTypeUnknown
from core.settings import Settings
from core.settings.worker import PROCESS_BACKEND

PACKAGED = Path(__file__).with_name("machine_types.toml")

_OLD_MONTHS = 6
_RECKONED_BANDWIDTH = 8.0  # GB/s of memory for each CPU of a host, until it is measured
_MAX_SUGGESTIONS = 3
_MIN_SIMILARITY = 0.5
_MAX_TPU_SIZE = 8
"""Cores or chips, as a generation counts them, of the largest TPU slice on one host; the same for all generations."""
_REMOTE_GENERATIONS = frozenset({"v2", "v3"})
"""TPUs that Google also offered over the network; later ones are used from their own hosts only."""


class MachineType(CatalogueEntry):
    """One machine type. A device is one GPU, one TPU chip or, on a CPU type, the whole host."""

    backend: str = Field(description="what runs its jobs")
    kind: Literal["cpu", "gpu", "tpu"] = Field(description="what does the work")
    accelerator: str = Field(min_length=1, description="device model")
    tpu_type: str | None = Field(None, description="the cloud's name of the TPU slice; TPU types only")
    hosts: int = Field(1, ge=1, description="virtual machines of the TPU slice; each runs the job's command")
    zones: tuple[str, ...] = Field((), description="the cloud's zones that offer it, as its documentation says")
    count: int = Field(ge=1, description="devices in the machine")
    replicas: int = Field(ge=1, description="workers of a data-parallel program that uses the whole machine")
    cpus: int | None = Field(None, ge=1, description="virtual CPUs of the host, if the type determines them")
    memory_gb: float = Field(gt=0, description="GB, all devices together (CPU types: host memory)")
    memory_bandwidth_gb_per_s: float = Field(gt=0, description="GB/s of one device's memory")
    tflops: dict[str, float] = Field(
        min_length=1, description="peak 10^12 operations/s by precision, all devices together, without sparsity"
    )
    measured_tflops: dict[str, float] = Field({}, description="the same, measured; predictions prefer it")
    measured_bandwidth_gb_per_s: float | None = Field(None, gt=0, description="GB/s of one device's memory, measured")
    price_per_hour: float = Field(ge=0, description="US dollars for the whole machine; 0: free")
    spot_price_per_hour: float | None = Field(None, gt=0, description="US dollars for spot capacity, if known")
    flex_start_price_per_hour: float | None = Field(
        None, gt=0, description="US dollars for flex-start capacity, if known"
    )
    price_source: str = Field(min_length=1, description="source and date of the list price")
    spec_source: str = Field(min_length=1, description="source of the other figures")
    slurm: SlurmRequest = Field(SlurmRequest(), description="what its jobs ask Slurm for")
    docker: ContainerPolicy = Field(ContainerPolicy(), description="additional privileges of its containers")

    @field_validator("backend")
    @classmethod
    def _is_backend(cls, name: str) -> str:
        selectable = [choice for choice, backend in BACKENDS.items() if backend.selectable]
        if name not in selectable:
            raise ValueError(f"{name!r} is not a backend; choose one of {', '.join(map(repr, selectable))}")
        return name

    @model_validator(mode="after")
    def _has_hosts(self) -> Self:
        size = (self.tpu_type or "").rpartition("-")[2]
        if size.isdecimal() and int(size) > _MAX_TPU_SIZE and self.hosts == 1:
            raise ValueError(f"{self.tpu_type!r} is a slice of several hosts; set `hosts` to their number")
        return self

    @property
    def tpu_on_vm(self) -> bool:
        """Default placement of its jobs: on the TPU's own hosts, or, if False, on the worker's."""
        return self.hosts > 1 or (self.tpu_type or "").partition("-")[0] not in _REMOTE_GENERATIONS

    @property
    def peak_tflops(self) -> dict[str, float]:
        """Measured peaks, where there are some, and those of the data sheet."""
        return self.tflops | self.measured_tflops

    @property
    def price_is_old(self) -> bool:
        """True if the source of its price is dated more than six months ago; of a mere year, its end counts."""
        dates = re.findall(r"\b(20\d\d)(?:-(\d\d))?", self.price_source)
        if not dates or not self.price_per_hour:
            return False
        year, month = dates[0]
        today = datetime.now(UTC)
        return (today.year - int(year)) * 12 + today.month - int(month or 12) > _OLD_MONTHS

    @property
    def gpus(self) -> int:
        """GPUs that a job gets exclusively on its host; TPUs do not count."""
        return self.count if self.kind == "gpu" else 0


def _normalize_name(name: str) -> str:
    return " ".join(name.split()).casefold()


_LIST = TomlCatalogue("machine type", "machines.file", MachineType, _normalize_name, ("price_per_hour", "price_source"))


class Catalogue:
    """All machine types, in the order of the file.

    `types`: the types; names and aliases must all differ, ignoring case.
    """

    def __init__(self, types: list[MachineType]) -> None:
        self._types = tuple(types)
        self._by_name = _LIST.by_name(types)

    @classmethod
    @cache
    def packaged(cls) -> "Catalogue":
        """Return the packaged list, which a process parses once."""
        return cls(_LIST.read(PACKAGED, None))

    @classmethod
    def load(cls, override_path: Path | None = None) -> "Catalogue":
        """Read the list, and an administrator's changes on top of it.

        `override_path`: tables that change single values of a type of the same name, or add types.
        """
        return cls.packaged() if override_path is None else cls(_LIST.read(PACKAGED, override_path))

    @classmethod
    def offered(cls, settings: Settings) -> "Catalogue":
        """Read the machine types of this installation: with this host, and without simulated ones if so set."""
        name = settings.machines.host
        if not name or _normalize_name(name) in cls.packaged()._by_name:  # noqa: SLF001 - its own class
            types = list(cls.load(settings.machines_file))
        else:
            entry = host_entry(settings, host_measurement.describe_once())
            types = _LIST.read(PACKAGED, settings.machines_file, {name: entry})
            types[0] = _only_of_same_device(types[0], entry)
        if not settings.machines.offer_simulated:
            types = [entry for entry in types if settings.backend_of(entry.backend) == entry.backend]
        return cls(types)

    def get(self, name: str) -> MachineType:
        """Return the type with this name or alias, ignoring case."""
        if entry := self._by_name.get(_normalize_name(name)):
            return entry
        near = difflib.get_close_matches(
            _normalize_name(name)[:100], self._by_name, n=_MAX_SUGGESTIONS, cutoff=_MIN_SIMILARITY
        )
        names = list(dict.fromkeys(self._by_name[key].name for key in near))  # aliases of one type count once
        nearest = f" Did you mean {' or '.join(map(repr, names))}?" if names else ""
        raise MachineTypeUnknown(
            f"There is no machine type {name[:100]!r}.{nearest} `gradient-cli machine-types` lists them all.",
            field="machineType",
        )

    def __iter__(self) -> Iterator[MachineType]:
        return iter(self._types)

    def __len__(self) -> int:
        return len(self._types)


def _only_of_same_device(changed: MachineType, entry: dict[str, Any]) -> MachineType:
    """Return this host as it was changed; of figures of another backend or device only the price."""
    if (changed.backend, changed.kind) == (entry["backend"], entry["kind"]):
        return changed
    kept = {field: getattr(changed, field) for field in ("price_per_hour", "price_source", "docker")}
    return MachineType.model_validate(entry | kept | {"name": changed.name})


def host_entry(settings: Settings, machine: dict[str, Any]) -> dict[str, Any]:
    """Return the table of the machine type that this host is, from what `host_measurement` found on it.

    Processes have no GPUs: where jobs are processes, it is its CPUs. The data sheet of a GPU is that of the type whose
    name is part of the name of the GPU.
    """
    backend = PROCESS_BACKEND if settings.machines.simulate else "docker"
    gpus = machine["gpus"] if backend == "docker" else []
    sheet = find_data_sheet(gpus[0]["name"]) if gpus else None
    measured = machine.get("tflops") or {}
    of_gpu = bool(gpus) and bool(sheet or machine.get("device") == "gpu")
    fits = of_gpu == (machine.get("device") == "gpu")
    mine = measured if fits else {}
    count = len(gpus) if of_gpu else 1
    peaks = {name: value * count for name, value in mine.items()}
    sheet_peaks = {name: value * count for name, value in sheet.tflops.items()} if sheet and of_gpu else None
    bandwidth = machine.get("memory_bandwidth_gb_per_s") if fits else None
    entry: dict[str, Any] = {
        "backend": backend,
        "kind": "gpu" if of_gpu else "cpu",
        "accelerator": gpus[0]["name"] if of_gpu else f"{machine['cpu']}, {machine['cpus']} CPUs",
        "count": count,
        "replicas": count,
        "cpus": machine["cpus"],
        "memory_gb": round(sum(gpu["memory_gb"] for gpu in gpus), 1) if of_gpu else machine["memory_gb"],
        "memory_bandwidth_gb_per_s": (sheet.memory_bandwidth_gb_per_s if sheet and of_gpu else None)
        or bandwidth
        or _RECKONED_BANDWIDTH * machine["cpus"],
        "tflops": sheet_peaks or (peaks if of_gpu else machine["reckoned_tflops"]),
        "measured_tflops": peaks,
        "price_per_hour": settings.machines.host_price,
        "price_source": "GRADIENT_MACHINES__HOST_PRICE" if settings.machines.host_price else "not set",
        "spec_source": "measured on this host" if mine else "estimated; measure it with `gradient-server machines add`",
    }
    return entry | ({"measured_bandwidth_gb_per_s": bandwidth} if bandwidth else {})


def find_data_sheet(gpu: str) -> MachineType | None:
    """Return the type of one GPU whose name is part of this name; of several the longest."""
    gpu_words = _words(gpu)
    fits = [entry for entry in Catalogue.packaged() if entry.gpus == 1 and _words(entry.name) <= gpu_words]
    return max(fits, key=lambda entry: len(_words(entry.name)), default=None)


def _words(name: str) -> set[str]:
    return set(name.casefold().replace("-", " ").split())
