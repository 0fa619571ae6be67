"""Jobs, nodes and partitions as Slurm's commands print them, from Slurm 20.11 on.

`squeue --json` is not used: it ignores filters, and its schema changes from version to version.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

SQUEUE_FORMAT = "%i|%T|%j|%S|%N|%P|%r|%k"
"""Format of the text for `parse_squeue`: the comment is last, as it may contain anything."""
SACCT_FORMAT = "JobID,State,JobName,Start,NodeList,Partition"
"""Fields of the text for `parse_sacct`, after `--noheader --parsable2 --allocations`."""

_SQUEUE_FIELDS = SQUEUE_FORMAT.count("|") + 1
_SACCT_FIELDS = SACCT_FORMAT.count(",") + 1
_JOB_ID = re.compile(r"\d+([_+](\d+|\[[^|]*\]))?")
_FIELD = re.compile(r"(?:^|\s)([A-Z][A-Za-z:/]*)=(.*?)(?=\s+[A-Z][A-Za-z:/]*=|\s*$)")
_LIMIT = re.compile(r"(?:(?P<days>\d+)-)?(?:(?P<hours>\d+):)?(?P<minutes>\d+):(?P<seconds>\d+)")
_GRES = re.compile(r"([^,(]+)(?:\([^)]*\))?")
_GPU = re.compile(r"gpu(?::(?P<model>[^:]*[^:\d][^:]*))?(?::(?P<count>\d+))?")
_NOTHING = frozenset({"", "(null)", "N/A", "n/a", "None", "NONE", "None assigned", "Unknown"})


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job or member of an array (`123_4`); members that wait may be together: `123_[0-3,7%2]`."""

    id: str
    state: str  # PENDING, RUNNING, …
    name: str
    start: str = ""  # of a job that waits: when it may start, as far as Slurm has planned
    nodes: str = ""
    partition: str = ""
    reason: str = ""
    comment: str = ""
    ended_by: str = ""  # who cancelled it; only accounting says so

    @property
    def key(self) -> str:
        """Return its name, and for a member of an array, whose members share one name, its task's number."""
        _, is_member, task = self.id.partition("_")
        return f"{self.name}/{task}" if is_member else self.name


@dataclass(frozen=True, slots=True)
class SlurmNode:
    name: str
    state: str  # IDLE, MIXED+DRAIN, …
    partitions: tuple[str, ...]
    cpus: int
    memory_mb: int
    gpus: tuple[tuple[str, int], ...]  # model and count; a model without a name is ""
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SlurmPartition:
    name: str
    root_only: bool
    max_seconds: int | None


def parse_squeue(text: str) -> list[SlurmJob]:
    """Read what `squeue --noheader --format SQUEUE_FORMAT` prints; lines that are no job are skipped."""
    rows = (line.strip().split("|", _SQUEUE_FIELDS - 1) for line in text.splitlines())
    return [
        SlurmJob(row[0], row[1], row[2], *map(_value, row[3:]))
        for row in rows
        if len(row) == _SQUEUE_FIELDS and _JOB_ID.fullmatch(row[0])
    ]


def parse_sacct(text: str) -> list[SlurmJob]:
    """Read what `sacct --noheader --parsable2 --allocations --format SACCT_FORMAT` prints.

    Of a job that was requeued, there is a row of each start: the last one counts.
    """
    jobs = {}
    for line in text.splitlines():
        row = line.strip().split("|")
        if len(row) == _SACCT_FIELDS and _JOB_ID.fullmatch(row[0]):
            state, _, ended_by = row[1].partition(" by ")
            jobs[row[0]] = replace(SlurmJob(row[0], state, *map(_value, row[2:])), ended_by=ended_by)
    return list(jobs.values())


def parse_nodes(text: str) -> list[SlurmNode]:
    """Read what `scontrol --oneliner show node` prints."""
    return [
        SlurmNode(
            name=fields["NodeName"],
            state=fields.get("State", ""),
            partitions=_names(fields.get("Partitions", "")),
            cpus=_count(fields, "CPUEfctv") or _count(fields, "CPUTot") or 1,
            memory_mb=max(1, _count(fields, "RealMemory") - _count(fields, "MemSpecLimit")),  # without the system's
            gpus=_parse_gpus(fields.get("Gres", "")),
            features=_names(fields.get("ActiveFeatures") or fields.get("AvailableFeatures", "")),
        )
        for fields in _records(text, "NodeName")
    ]


def parse_partitions(text: str) -> list[SlurmPartition]:
    """Read what `scontrol --oneliner show partition` prints."""
    return [
        SlurmPartition(fields["PartitionName"], fields.get("RootOnly") == "YES", parse_limit(fields.get("MaxTime", "")))
        for fields in _records(text, "PartitionName")
    ]


def parse_limit(text: str) -> int | None:
    """Return the seconds of `1-00:00:00`, `04:00:00` or `30:00`; None: there is no limit."""
    match = _LIMIT.fullmatch(text)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _parse_gpus(gres: str) -> tuple[tuple[str, int], ...]:
    """Return models and counts of `gpu:a100:4(S:0-1),gpu:2,shard:8`."""
    matches = (_GPU.fullmatch(item[1].strip()) for item in _GRES.finditer(gres))
    return tuple((match["model"] or "", int(match["count"] or 1)) for match in matches if match)


def _records(text: str, key: str) -> Iterator[Mapping[str, str]]:
    """Yield the fields of each line that begins with this key.

    Of a key that is there twice, the first one counts: what users write comes after Slurm's own values.
    """
    for line in text.splitlines():
        if line.startswith(f"{key}="):
            fields: dict[str, str] = {}
            for match in _FIELD.finditer(line):
                fields.setdefault(match[1], match[2])
            yield fields


def _value(text: str) -> str:
    return "" if text in _NOTHING else text


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, _value(text).split(",")))


def _count(fields: Mapping[str, str], key: str) -> int:
    text = fields.get(key, "")
    return int(text) if text.isdecimal() else 0
