"""Parser for DogStatsD datagrams: `name:value|type|@rate|#tag,key:value`, one metric a line."""

import math
from dataclasses import dataclass
from typing import NamedTuple

from core.jobs.tracking.metrics import MAX_NAME

COUNTER = "c"
_KINDS = frozenset({COUNTER, "g", "ms", "h", "d"})
_JOB_TAG = "container_name:"
_CLIENT_METRICS_PREFIX = "datadog.dogstatsd.client."  # metrics of the client library about itself, which are ignored
_OTHER_PREFIXES = ("_e{", "_sc|")


class Sample(NamedTuple):
    """One value, with its metric, its kind, and the job that the sender names."""

    name: str
    kind: str
    value: float
    job_id: str


@dataclass(frozen=True, slots=True)
class Packet:
    """A datagram's samples, and the number of its malformed lines."""

    samples: tuple[Sample, ...]
    malformed: int


def parse(data: bytes) -> Packet:
    """Parse the metrics in a datagram; counters are scaled up by their sample rate."""
    samples: list[Sample] = []
    malformed = 0
    for line in data.decode(errors="replace").split("\n"):
        if not line or line.startswith((_CLIENT_METRICS_PREFIX, *_OTHER_PREFIXES)):
            continue
        sample = _parse_sample(line)
        if sample is None:
            malformed += 1
        else:
            samples.append(sample)
    return Packet(tuple(samples), malformed)


def _parse_sample(line: str) -> Sample | None:
    name, colon, rest = line.partition(":")
    value_text, *fields = rest.split("|")
    if not colon or not fields or fields[0] not in _KINDS:
        return None
    if not name or len(name) > MAX_NAME or not name.isprintable():
        return None
    value, rate = _parse_number(value_text), 1.0
    job_id = ""
    for field in fields[1:]:
        if field.startswith("@"):
            rate = _parse_number(field[1:]) or 0.0
        elif field.startswith("#"):
            job_id = next((tag[len(_JOB_TAG) :] for tag in field[1:].split(",") if tag.startswith(_JOB_TAG)), "")
    if value is None or not 0 < rate <= 1:
        return None
    counted = value / rate if fields[0] == COUNTER else value
    return Sample(name, fields[0], counted, job_id) if math.isfinite(counted) else None


def _parse_number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
