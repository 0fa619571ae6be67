"""What an NVIDIA card is and what uses it, whoever tells it: see `nvml` and `smi`."""

from dataclasses import asdict, dataclass
from typing import Any


class NoDriver(Exception):
    """Cards cannot be asked after in this way here."""


@dataclass(frozen=True, slots=True)
class Card:
    """What a card is.

    Attributes:
        index: Its number among the host's cards, in the driver's order.
        memory: Bytes.
        serial: None where the card has none (most that are not made for data centres).
        cuda: The newest CUDA version that the driver runs; None if it does not say.
    """

    index: str
    uuid: str
    name: str
    memory: int
    serial: str | None
    driver: str
    cuda: str | None

    def facts(self) -> dict[str, Any]:
        """As kept in the record of an attempt."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Use:
    """What a card does now.

    Attributes:
        memory: Bytes in use, without what the driver keeps for itself.
        percent: Share of the last moments in which it computed; None if it does not say.
        watts: None if it does not say.
        celsius: None if it does not say.
        pids: Processes that use it, as this host counts them.
    """

    memory: int
    percent: float | None
    watts: float | None
    celsius: float | None
    pids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Seen:
    """A card and its use at one moment."""

    card: Card
    use: Use

    def called(self, name: str) -> bool:
        """Whether this is the card of that index or UUID."""
        return name in {self.card.index, self.card.uuid}
