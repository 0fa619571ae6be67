"""Writes metric values to the metrics files of the attempts that sent them."""

from pathlib import Path
from typing import NamedTuple

from worker.runner.statsd import StatsdRows, append_rows

_MAX_ATTEMPTS = 1000


class Sender(NamedTuple):
    """Sender of a datagram: a job and its running attempt."""

    job_id: str
    attempt: int


class Aggregator:
    """Gathers values by attempt, and writes them periodically."""

    def __init__(self, attempts: Path) -> None:
        self._attempts = attempts
        self._rows: dict[Sender, StatsdRows] = {}

    def receive(self, sender: Sender, data: bytes) -> None:
        if sender not in self._rows:
            if len(self._rows) >= _MAX_ATTEMPTS or not self._control_folder(sender).is_dir():
                return
            self._rows[sender] = StatsdRows()
        self._rows[sender].receive(data, sender.job_id)

    def flush(self) -> None:
        """Write the gathered values, and forget attempts that are over."""
        for sender, gathered in list(self._rows.items()):
            control = self._control_folder(sender)
            if not control.is_dir():
                del self._rows[sender]
            elif rows := gathered.take():
                append_rows(control, rows)

    def _control_folder(self, sender: Sender) -> Path:
        return self._attempts / f"{sender.job_id}-{sender.attempt}" / "control"
