"""Injects faults: each kind alone first, until jobs succeed again, then many that overlap."""

import random
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from chaos.canaries import Canaries
from chaos.clients import Clients
from chaos.faults import ALL_WORKERS, FAULTS, FaultContext, FaultKind, RunAborted
from chaos.stack import API_PROCESSES, BACKENDS, Stack
from support.deployment import TIMEOUT_SECONDS

RECOVERY_SECONDS = 3 * TIMEOUT_SECONDS
"""A canary that has not succeeded so long after a fault's end is a violation."""
PAUSE_SECONDS = (1.0, 7.0)
"""Seconds between the beginnings of two faults that may overlap."""
_LOOKAHEAD = 8


@dataclass
class InjectedFault:
    """One fault that was injected; times are of the monotonic clock, seconds."""

    fault: FaultKind
    alone: bool
    began: float
    chosen: dict[str, str]
    ended: float | None = None
    failed: str = ""
    """The error if the fault could not be injected or repaired; it then counts for nothing."""
    recovered: dict[str, float | None] = field(default_factory=dict)
    """By machine type, seconds from its end until the first canary had succeeded; None: none did."""


class Nemesis:
    """Injects faults, and remembers them.

    Args:
        stack: The service.
        clients: The clients whose jobs are harmed.
        seed: The seed of its choices.
        kinds: The faults to draw from.
        say: Tells of progress.
    """

    def __init__(
        self, stack: Stack, clients: Clients, seed: int, kinds: Sequence[FaultKind] = FAULTS, log: Callable = print
    ) -> None:
        self.injected: list[InjectedFault] = []
        self.aborted = threading.Event()
        self._stack, self._clients, self._kinds, self._log = stack, clients, kinds, log
        self._seed = seed
        self._chance = random.Random(f"{seed} nemesis")  # noqa: S311 - repeatable, not secret
        self._canaries = Canaries(clients, self.aborted)
        self._busy_parts: set[str] = set()
        self._change = threading.Condition()
        self._threads: list[threading.Thread] = []

    def inject_one_by_one(self, most: int) -> None:
        """Inject every kind once, and wait after each until canaries succeed."""
        for fault in self._kinds[:most]:
            self._inject_one_of([fault], alone=True)
            self._threads[-1].join()
            if self.aborted.is_set():
                return

    def inject_overlapping(self, count: int) -> None:
        """Inject so many, drawn by their weights; one whose part is taken lets those after it pass."""
        drawn = self._chance.choices(self._kinds, [fault.weight for fault in self._kinds], k=count)
        while drawn:
            self._inject_one_of(drawn, alone=False)
            if self.aborted.wait(self._chance.uniform(*PAUSE_SECONDS)):
                return

    def wait(self) -> None:
        """Until all faults have ended and were recovered from."""
        for thread in self._threads:
            thread.join()

    # ---- One fault

    def _inject_one_of(self, drawn: list[FaultKind], *, alone: bool) -> None:
        """Begin with the first whose parts are free, and take it off the list."""
        with self._change:
            while not (able := [one for one in drawn[:_LOOKAHEAD] if self._choose_processes(one) is not None]):
                self._change.wait(1)
            fault = able[0]
            drawn.remove(fault)
            chosen = self._choose_processes(fault) or {}
            parts = {chosen.get(part, part) for part in fault.parts}
            self._busy_parts |= parts
        one = InjectedFault(fault, alone, time.monotonic(), chosen)
        self.injected.append(one)
        chance = random.Random(f"{self._seed} fault {len(self.injected)}")  # noqa: S311 - repeatable, not secret
        hands = FaultContext(self._stack, self._clients, chance, self.aborted)
        self._threads.append(threading.Thread(target=self._run, args=(one, hands, parts), daemon=True))
        self._threads[-1].start()

    def _choose_processes(self, fault: FaultKind) -> dict[str, str] | None:
        """Choose the processes that a fault is done to; None if a part that it touches is taken."""
        chosen = {}
        for part in fault.parts:
            anyone = {"api": API_PROCESSES, "worker": ALL_WORKERS}.get(part, (part,))
            free = [name for name in anyone if name not in self._busy_parts]
            if not free:
                return None
            if anyone != (part,):
                chosen[part] = self._chance.choice(free)
        return chosen

    def _run(self, one: InjectedFault, hands: FaultContext, parts: set[str]) -> None:
        try:
            one.fault.inject(hands, one.chosen)
        except RunAborted:
            pass
        except Exception as error:  # noqa: BLE001 - counted, and told: the run goes on without it
            one.failed = repr(error)
        one.ended = time.monotonic()
        with self._change:
            self._busy_parts -= parts
            self._change.notify_all()
        if not self.aborted.is_set() and not one.failed:
            self._await_recovery(one)
        self._log_fault(one)

    def _await_recovery(self, one: InjectedFault) -> None:
        def wait(machine_type: str) -> None:
            one.recovered[machine_type] = self._canaries.wait_first_success(
                machine_type, one.ended or 0.0, RECOVERY_SECONDS
            )

        with ThreadPoolExecutor(len(BACKENDS)) as both:
            list(both.map(wait, BACKENDS))

    def _log_fault(self, one: InjectedFault) -> None:
        assert one.ended is not None
        figures = ", ".join(
            f"{BACKENDS[machine_type]} {'not' if seconds is None else f'{seconds:.1f} s'}"
            for machine_type, seconds in sorted(one.recovered.items())
        )
        self._log(
            f"{len([each for each in self.injected if each.ended])} "
            f"{one.fault.name} {' '.join(one.chosen.values())}: {one.ended - one.began:.1f} s"
            f"{' FAILED ' + one.failed if one.failed else ''}; recovered: {figures or '-'}; "
            f"{len(self._clients.accepted)} jobs, {len(self._clients.active_jobs())} under way"
        )
