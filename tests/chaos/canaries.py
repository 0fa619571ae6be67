"""Small jobs that say when the service works again."""

import contextlib
import random
import threading
import time
from dataclasses import dataclass

from chaos.clients import Clients

_INTERVAL_SECONDS = 3.0
_MAX_OUTSTANDING = 5
_GIVE_UP_SECONDS = 120.0


@dataclass
class Canary:
    """One canary job; times are of the monotonic clock, in seconds."""

    machine_type: str
    submitted: float
    done: float | None = None
    given_up: bool = False


class Canaries:
    """Submits canary jobs while somebody waits for one; all who wait share them.

    Args:
        clients: The clients that submit them.
        aborted: Set when the run ends early.
    """

    def __init__(self, clients: Clients, aborted: threading.Event) -> None:
        self._clients, self._aborted = clients, aborted
        self._lock = threading.Lock()
        self._canaries: list[Canary] = []

    def wait_first_success(self, machine_type: str, at: float, seconds: float) -> float | None:
        """Wait for a canary submitted after a time; return the seconds until the first success, or None.

        Args:
            machine_type: What it runs on.
            at: The time, by the monotonic clock.
            seconds: How long to wait for it.
        """
        while time.monotonic() - at < seconds and not self._aborted.is_set():
            with self._lock:
                sent = [one for one in self._canaries if one.machine_type == machine_type]
                if done := [one.done for one in sent if one.done is not None and one.submitted >= at]:
                    return min(done) - at
                waiting = [one for one in sent if one.done is None and not one.given_up]
                last = max((one.submitted for one in sent), default=0.0)
                if (last < at or time.monotonic() - last > _INTERVAL_SECONDS) and len(waiting) < _MAX_OUTSTANDING:
                    self._canaries.append(Canary(machine_type, time.monotonic()))
                    threading.Thread(target=self._follow, args=(self._canaries[-1],), daemon=True).start()
            self._aborted.wait(0.1)
        return None

    def _follow(self, one: Canary) -> None:
        chance = random.Random(one.submitted)  # noqa: S311 - only which API process is asked
        with contextlib.suppress(TimeoutError):
            job_id = self._clients.submit("canary", one.machine_type, chance).job_id
            while not self._aborted.is_set() and time.monotonic() - one.submitted < _GIVE_UP_SECONDS:
                if self._clients.state(job_id, chance.randrange(2)) == "Stopped":
                    one.done = time.monotonic()
                    return
                time.sleep(0.2)
        one.given_up = True
