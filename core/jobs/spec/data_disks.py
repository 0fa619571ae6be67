"""Data disks: existing persistent disks that a job has on its TPU VM."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from core.errors import SpecInvalid
from core.jobs.spec.image_options import quoted

MAX_DATA_DISKS = 8
_DISK = re.compile(r"(?P<name>[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?)(?::(?P<mode>ro|rw))?\Z")


@dataclass(frozen=True, slots=True)
class DataDisk:
    name: str  # the disk's name; it is the same in each zone that has one
    writable: bool


def parse_data_disks(given: Sequence[str]) -> tuple[DataDisk, ...]:
    """Read disks, `NAME`, `NAME:ro` or `NAME:rw`."""
    if len(given) > MAX_DATA_DISKS:
        raise SpecInvalid(f"{len(given)} disks; at most {MAX_DATA_DISKS} are allowed.", field="dataDisks")
    disks: list[DataDisk] = []
    for text in given:
        match = _DISK.match(text)
        if match is None:
            raise SpecInvalid(
                f"{quoted(text)} is not a disk. Give its name, such as imagenet, or imagenet:rw to write to it.",
                field="dataDisks",
            )
        if any(match["name"] == disk.name for disk in disks):
            raise SpecInvalid(f"{match['name']} is named twice. Name each disk once.", field="dataDisks")
        disks.append(DataDisk(match["name"], match["mode"] == "rw"))
    return tuple(disks)


def zones_of_disks(disks: Sequence[DataDisk], existing: Iterable[str], hosts: int) -> frozenset[str]:
    """Return the zones that have all of these disks. `disks`: the disks of a job; at least one."""
    places = [disk.partition("/")[::2] for disk in existing]
    by_name = {disk.name: {zone for zone, name in places if name == disk.name} for disk in disks}
    unknown = next((name for name, zones in by_name.items() if not zones), None)
    if unknown is not None:
        names = ", ".join(sorted({name for _, name in places})) or "none"
        raise SpecInvalid(
            f"{unknown} is not a disk for jobs. GRADIENT_TPU__DATA_DISKS names these: {names}.",
            field="dataDisks",
        )
    written = next((disk.name for disk in disks if disk.writable), None)
    if written is not None and hosts > 1:
        raise SpecInvalid(
            f"{written} cannot be written by {hosts} hosts: Google attaches a disk for writing to one host only. "
            f"Name it {written}:ro.",
            field="dataDisks",
        )
    zones = frozenset.intersection(*map(frozenset, by_name.values()))
    if not zones:
        where = "; ".join(f"{name} in {', '.join(sorted(zones))}" for name, zones in by_name.items())
        raise SpecInvalid(f"No zone has all of these disks: {where}.", field="dataDisks")
    return zones
