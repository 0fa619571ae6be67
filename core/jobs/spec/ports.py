"""Ports that a job exposes, as users write them: `external:internal[:scheme]`."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from core.errors import SpecInvalid

MAX_PORTS = 20
FIRST_EXTERNAL = 1024
_LAST = 65_535
_PORT_PATTERN = re.compile(
    r"(?:(?P<external>\d{0,5}):)?(?P<internal>\d{1,5})(?::(?P<scheme>[a-z][a-z0-9+.-]{0,15}))?\Z"
)


@dataclass(frozen=True, slots=True)
class PortMapping:
    external: int  # port of the host; 0: any free one
    internal: int
    scheme: str = "http"

    @classmethod
    def parse(cls, text: str) -> Self:
        match = _PORT_PATTERN.match(text.strip())
        if match is None:
            raise SpecInvalid(
                f"{text[:80]!r} is not a port. Write external:internal, for example 8888:8888; with internal only "
                "(6006), the host chooses the external port; add :https for an https link.",
                field="ports",
            )
        external, internal = int(match["external"] or 0), int(match["internal"])
        if not 1 <= internal <= _LAST or not (external == 0 or FIRST_EXTERNAL <= external <= _LAST):
            raise SpecInvalid(
                f"{text[:80]!r} is out of range: the job's own port is 1 to {_LAST}, the host's {FIRST_EXTERNAL} to "
                f"{_LAST} or 0 (any free port).",
                field="ports",
            )
        return cls(external, internal, match["scheme"] or "http")

    def __str__(self) -> str:
        return f"{self.external}:{self.internal}:{self.scheme}"


def parse_ports(written: tuple[str, ...]) -> tuple[PortMapping, ...]:
    """Parse a job's ports; each item may hold several, separated by commas."""
    ports = tuple(PortMapping.parse(text) for item in written for text in item.split(",") if text.strip())
    if len(ports) > MAX_PORTS:
        raise SpecInvalid(f"{len(ports)} ports; a job has at most {MAX_PORTS}.", field="ports")
    for which, numbers in (
        ("of the job", [port.internal for port in ports]),
        ("of the host", [port.external for port in ports if port.external]),
    ):
        twice = next((number for number in numbers if numbers.count(number) > 1), None)
        if twice is not None:
            raise SpecInvalid(f"Port {twice} {which} is named twice; name it once.", field="ports")
    return ports


def check_not_reserved(ports: tuple[PortMapping, ...], taken: Mapping[int, str]) -> None:
    """Refuse a port of the host that the service itself needs."""
    for port in ports:
        if port.external in taken:
            raise SpecInvalid(
                f"Port {port.external} of the host is used by the service itself ({taken[port.external]}). Choose "
                "another port, or 0 for any free port.",
                field="ports",
            )
