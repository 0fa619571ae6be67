"""Gets a TPU for an attempt: searches, requests, waits, reports what it waits for, and tries the next zone.

It looks for existing resources before it requests any, so that a worker that takes over after a crash continues where
the last one was.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from core.settings.cloud import TpuSettings
from worker.backends.base import LaunchError, LaunchSpec
from worker.backends.tpu import node_state
from worker.backends.tpu.api import CAPACITY, ApiAway, ApiError, ApiRefused, Node, TpuApi, Wish
from worker.backends.tpu.deletion import Removal
from worker.backends.tpu.node_state import Trouble
from worker.backends.tpu.provisioning.modes import AtOnce, InTurn, Look, Way
from worker.backends.tpu.resource_log import POOL, Entry, Ledger

logger = logging.getLogger(__name__)

_BAD_NODE_LOOKS = 12
"""Number of polls after which an unusable node of a pool is checked again."""

Say = Callable[[str], None]
"""Called with what is waited for; raises if the start must be aborted."""


@dataclass(frozen=True, slots=True)
class Device:
    """A TPU reserved for the attempt."""

    entry: Entry
    node: Node


class _NextZone(Exception):
    """This zone has no device for the job."""


class Patience:
    """Tolerates an API that does not answer, up to a limit on the time since its last answer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answered = time.monotonic()

    def answered(self) -> None:
        """Record that the API answered."""
        self._answered = time.monotonic()

    def away(self, error: ApiAway) -> None:
        """Record that the API did not answer; raises after the time limit."""
        logger.info("tpu_api_away", extra={"error": str(error)})
        if time.monotonic() - self._answered >= self._seconds:
            raise LaunchError("tpu_api_away", str(error)) from error


class Seeker:
    """Searches for one device for one attempt.

    Args:
        api: Google's TPU API.
        ledger: The record of billed resources.
        settings: The TPU settings.
        ready: Checks that a job can use a device in a zone, before one is requested; raises LaunchError.
    """

    def __init__(self, api: TpuApi, ledger: Ledger, settings: TpuSettings, ready: Callable[[str], None]) -> None:
        self._api = api
        self._ledger = ledger
        self._settings = settings
        self._ready = ready
        self._removal = Removal(api, ledger)

    def seek(self, spec: LaunchSpec, wish: Wish, say: Say) -> Device:
        """Get a device.

        Args:
            spec: The attempt.
            wish: The node to create, if one has to be created.
            say: Called with what is waited for.

        Raises:
            LaunchError: No device is available.
        """
        before = self._ledger.of_attempt(spec.job_id, spec.attempt)
        waited = max((entry.age for entry in before), default=0.0)
        until = time.monotonic() + self._settings.provision_timeout_seconds - waited
        way = self._settings.way_of(spec.machine_type)
        if way == "pool":
            return _Pool(self._api, self._ledger, self._settings, self._ready).take(spec, until, say)
        making: Way = AtOnce(self._api) if way == "node" else InTurn(self._api)
        passed = {entry.zone for entry in before if entry.over}
        tried: list[str] = []
        left = [zone for zone in self._settings.zones if zone not in passed]
        while left:
            zone = left.pop(0)
            self._ready(zone)
            share = (until - time.monotonic()) / (len(left) + 1)
            search = _Search(self._removal, self._ledger, self._settings, making, _adding(say, tried))
            try:
                return search.run(spec, wish, zone, share)
            except _NextZone as error:
                tried.append(f"{zone}: {error}")
        raise LaunchError(CAPACITY, "; ".join(tried) or "every zone was tried")


def _adding(say: Say, tried: list[str]) -> Say:
    """Return a `say` that appends what was tried before."""
    return lambda words: say(f"{words}; tried {'; '.join(tried)}" if tried else words)


class _Search:
    """Searches one zone."""

    def __init__(self, removal: Removal, ledger: Ledger, settings: TpuSettings, way: Way, say: Say) -> None:
        self._removal = removal
        self._ledger = ledger
        self._settings = settings
        self._way = way
        self._say = say
        self._state = ""
        self._since = ""
        self._ill_since: float | None = None

    def run(self, spec: LaunchSpec, wish: Wish, zone: str, seconds: float) -> Device:
        until = time.monotonic() + seconds
        name = f"{zone}/{wish.id}"
        entry = self._ledger.intend(self._way.kind, name, job_id=spec.job_id, attempt=spec.attempt)
        if entry is None:
            raise LaunchError("internal_error", f"{name} is another attempt's")
        patience = Patience(self._settings.api_retry_seconds)
        while True:
            self._report(entry)
            try:
                entry, node = self._step(entry, wish, until)
            except ApiAway as error:
                patience.away(error)
            except ApiRefused as error:
                self._give_back(entry, error.detail)
                if error.reason == CAPACITY:
                    raise _NextZone(error.detail) from error
                raise LaunchError(error.reason, error.detail) from error
            else:
                patience.answered()
                if node is not None:
                    return Device(entry, node)
            if time.monotonic() >= until:
                self._give_back(entry, "not had in time")
                raise _NextZone(f"not had within {max(0.0, seconds):.0f} s")
            time.sleep(self._settings.poll_seconds)

    def _step(self, entry: Entry, wish: Wish, until: float) -> tuple[Entry, Node | None]:
        """Look once, and request the device if nothing is there."""
        look = self._way.look(entry)
        if not look.there:
            operation = self._way.make(entry.zone, wish, max(60.0, until - time.monotonic()))
            self._ledger.note(entry, state="requested", operation=operation)
            return replace(entry, operation=operation), None
        self._see(entry, look)
        if look.trouble is not None:
            self._give_back(entry, look.trouble.detail)
            raise LaunchError(look.trouble.reason, look.trouble.detail)
        return entry, self._well(entry, look.node)

    def _well(self, entry: Entry, node: Node | None) -> Node | None:
        """Return the node if a job can run on it; release one that stays unhealthy."""
        if node is None or node_state.usable(node):
            return node
        trouble = node_state.ill(node)
        if trouble is None or node.state != node_state.READY:
            self._ill_since = None
            return None
        self._ill_since = self._ill_since or time.monotonic()
        if time.monotonic() - self._ill_since >= self._settings.unhealthy_seconds:
            self._give_back(entry, trouble.detail)
            raise LaunchError(trouble.reason, trouble.detail)
        return None

    def _see(self, entry: Entry, look: Look) -> None:
        health = look.node.health if look.node is not None else None
        state = look.state if health in {None, "UNSPECIFIED", "HEALTHY"} else f"{look.state}, {health}"
        if state != self._state:
            self._state, self._since = state, f"{datetime.now(UTC):%H:%M:%S} UTC"
            self._ledger.note(entry, state=look.state, health=health, bills=look.state == node_state.READY)

    def _report(self, entry: Entry) -> None:
        since = f"{self._state} since {self._since}" if self._state else "is asked for"
        self._say(f"{self._way.words} {entry.name}: {since}")

    def _give_back(self, entry: Entry, why: str) -> None:
        try:
            self._removal.remove(entry, why)
        except ApiError as error:  # the ledger still lists it: the teardown and the sweep try again
            logger.warning("tpu_not_deleted", extra={"resource": entry.name, "error": str(error)})


class _Pool:
    """Existing nodes that jobs take in turn."""

    def __init__(self, api: TpuApi, ledger: Ledger, settings: TpuSettings, ready: Callable[[str], None]) -> None:
        self._api = api
        self._ledger = ledger
        self._settings = settings
        self._ready = ready

    def take(self, spec: LaunchSpec, until: float, say: Say) -> Device:
        names = self._settings.pool.get(spec.machine_type, [])
        if not names:
            raise LaunchError("tpu_denied", f"GRADIENT_TPU__POOL names no node for {spec.machine_type}")
        patience = Patience(self._settings.api_retry_seconds)
        troubles: dict[str, Trouble] = {}
        ask_again = 0.0
        while True:
            if time.monotonic() >= ask_again:
                troubles.clear()
                ask_again = time.monotonic() + _BAD_NODE_LOOKS * self._settings.poll_seconds
            try:
                device = self._first(spec, [name for name in names if name not in troubles], troubles)
                patience.answered()
            except ApiAway as error:
                patience.away(error)
                device = None
            if device is not None:
                return device
            self._wait(troubles, len(names), until)
            say(_waiting(troubles, len(names)))
            time.sleep(self._settings.poll_seconds)

    def _first(self, spec: LaunchSpec, names: list[str], troubles: dict[str, Trouble]) -> Device | None:
        """Reserve the first of these nodes that is free and healthy; add the problems of others to `troubles`."""
        held = [one for one in self._ledger.of_attempt(spec.job_id, spec.attempt) if not one.over and one.kind == POOL]
        mine = {entry.name for entry in held}
        for name in [*mine, *(name for name in names if name not in mine)]:
            self._ready(name.partition("/")[0])
            entry = self._ledger.intend(POOL, name, job_id=spec.job_id, attempt=spec.attempt)
            if entry is None:
                continue  # another job has it
            try:
                found = self._usable(entry)
            except ApiAway:
                self._ledger.close(entry, gone=True)
                raise
            if isinstance(found, Node):
                self._ledger.note(entry, state=found.state, health=found.health, bills=True)
                return Device(entry, found)
            self._ledger.close(entry, gone=True, detail=found.detail)
            troubles[name] = found
        return None

    def _usable(self, entry: Entry) -> Node | Trouble:
        try:
            node = self._api.node(entry.zone, entry.cloud_id) or self._api.old_node(entry.zone, entry.cloud_id)
        except ApiRefused as error:
            return Trouble(error.reason, error.detail)
        if node is None:
            return Trouble("tpu_lost", f"there is no node {entry.name}")
        if node_state.usable(node):
            return node
        return (
            node_state.lost(node) or node_state.ill(node) or Trouble("tpu_unreachable", f"{entry.name} has no address")
        )

    def _wait(self, troubles: dict[str, Trouble], count: int, until: float) -> None:
        """Raise if waiting is useless, or has taken too long."""
        if len(troubles) == count:
            worst = next(iter(troubles.values()))
            raise LaunchError(worst.reason, "; ".join(one.detail for one in troubles.values()))
        if time.monotonic() >= until:
            raise LaunchError(CAPACITY, f"{_waiting(troubles, count)}, for too long")


def _waiting(troubles: dict[str, Trouble], count: int) -> str:
    words = f"{count - len(troubles)} of the pool's {count} TPUs are other jobs'"
    return f"{words}; {'; '.join(one.detail for one in troubles.values())}" if troubles else words
