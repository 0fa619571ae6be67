"""Data types for GPUs and their processes, filled by `nvml` or `smi`."""

from dataclasses import asdict, dataclass
from typing import Any


class NoDriver(Exception):
    """GPUs cannot be queried in this way on this host."""


@dataclass(frozen=True, slots=True)
class Card:
    """Properties of a GPU.

    Attributes:
        index: Its number among the host's GPUs, in the driver's order.
        memory: Bytes.
        serial: None if the GPU has none (most consumer GPUs).
        cuda: The newest CUDA version that the driver supports; None if unknown.
    """

    index: str
    uuid: str
    name: str
    memory: int
    serial: str | None
    driver: str
    cuda: str | None

    def facts(self) -> dict[str, Any]:
        """Return the properties as stored for an attempt."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Use:
    """Current use of a GPU.

    Attributes:
        memory: Bytes in use, without the driver's own.
        percent: Utilization in the last moments; None if unknown.
        watts: None if unknown.
        celsius: None if unknown.
        pids: Processes that use it, by their pids on this host.
    """

    memory: int
    percent: float | None
    watts: float | None
    celsius: float | None
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A GPU and its use at one moment."""

    card: Card
    use: Use

    def called(self, name: str) -> bool:
        """Return whether this GPU has that index or UUID."""
        return name in {self.card.index, self.card.uuid}
