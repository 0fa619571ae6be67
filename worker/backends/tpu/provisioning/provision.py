"""Gets a TPU for an attempt: searches, requests, waits, reports what it waits for, and tries the next zone.

It looks for existing resources before it requests any, so that a worker that takes over after a crash continues where
the last one was.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from core.settings.cloud import TpuSettings
from worker.backends.base import LaunchError, LaunchSpec
from worker.backends.tpu import node_state, times
from worker.backends.tpu.api import (
    CAPACITY,
    DENIED,
    QUOTA,
    ApiRefused,
    ApiUnavailable,
    Node,
    NodeRequest,
    NotPermitted,
    TpuApi,
)
from worker.backends.tpu.billing import record_billing
from worker.backends.tpu.cancellation import pause
from worker.backends.tpu.node_release import NodeDeleter
from worker.backends.tpu.node_state import NodeFailure
from worker.backends.tpu.provisioning.provisioning_modes import (
    DirectNodeMode,
    ProvisioningMode,
    QueuedResourceMode,
)
from worker.backends.tpu.resource_inventory import POOL, ResourceEntry, ResourceInventory

logger = logging.getLogger(__name__)

_RECHECK_POLLS = 12  # number of polls after which an unusable node of a pool is checked again

Report = Callable[[str], None]  # called with what is waited for; raises if the start must be aborted


@dataclass(frozen=True, slots=True)
class ReservedTpu:
    entry: ResourceEntry
    node: Node


class _NextZone(Exception):
    """This zone has no device for the job."""

    def __init__(self, detail: str, reason: str = CAPACITY) -> None:
        super().__init__(detail)
        self.reason = reason


class RetryBudget:
    """Tolerates an API that does not answer, up to a limit on the time since its last answer."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._answered = time.monotonic()

    def record_answer(self) -> None:
        self._answered = time.monotonic()

    def is_over(self, seconds: float) -> bool:
        return time.monotonic() - self._answered >= seconds

    def record_failure(self, error: ApiUnavailable, seconds: float | None = None) -> None:
        """Record that the API did not answer; raises after the time limit, by default that of the budget."""
        logger.info("tpu_api_unavailable", extra={"error": str(error)})
        if self.is_over(self._seconds if seconds is None else seconds):
            raise LaunchError(error.reason, str(error)) from error


@dataclass(frozen=True, slots=True)
class Provisioner:
    """Searches for one device for one attempt."""

    api: TpuApi
    resource_inventory: ResourceInventory
    settings: TpuSettings
    prepare_zone: Callable[[str], None]  # checks that a job can use a TPU in a zone, before one is requested
    deleter: NodeDeleter
    spot_price: float | None  # US dollars per hour of spot capacity, for nodes of a pool; None: not known

    def provision(
        self, spec: LaunchSpec, request: NodeRequest, report: Report, confirm: Callable[[], None]
    ) -> ReservedTpu:
        """Reserve or create a device; `request` describes the node to create.

        Reports what is waited for, and confirms that the job is still held before a node of a pool is freed. Raises
        `LaunchError`: no device is available.
        """
        before = self.resource_inventory.list_of_attempt(spec.job_id, spec.attempt)
        waited = max((time.time() - entry.recorded_at for entry in before), default=0.0)
        until = time.monotonic() + self.settings.provision_timeout_seconds - waited
        provisioning = self.settings.provisioning_for(spec.machine_type)
        if provisioning == "pool":
            pool = _NodePool(self.api, self.resource_inventory, self.settings, self.prepare_zone, self.spot_price)
            return pool.take(spec, until, report, confirm)
        mode: ProvisioningMode = DirectNodeMode(self.api) if provisioning == "node" else QueuedResourceMode(self.api)
        passed = {entry.zone for entry in before if entry.over}
        tried: list[tuple[str, _NextZone]] = []
        left = [zone for zone in self.settings.zones if zone not in passed and _may_be_in(zone, request)]
        while left:
            zone = left.pop(0)
            if not self.api.offers(zone, request.accelerator_type):
                tried.append((zone, _NextZone(f"does not offer {request.accelerator_type}", DENIED)))
                continue
            self.prepare_zone(zone)
            share = (until - time.monotonic()) / (len(left) + 1)
            shown, exists = _with_history(report, tried), any(entry.zone == zone for entry in before)
            search = _ZoneSearch(
                self.deleter, self.resource_inventory, self.settings, mode, shown, may_exist=exists, is_last=not left
            )
            try:
                return search.run(spec, request, zone, share)
            except _NextZone as error:
                tried.append((zone, error))
        reasons = {error.reason for _, error in tried}
        reason = next((candidate for candidate in (CAPACITY, QUOTA, DENIED) if candidate in reasons), CAPACITY)
        raise LaunchError(reason, _describe_zones(tried) or "every zone was tried")


def _may_be_in(zone: str, request: NodeRequest) -> bool:
    has_disks = request.zones is None or zone in request.zones
    return has_disks and (request.reservation is None or request.reservation.startswith(f"{zone}/"))


def _describe_zones(tried: list[tuple[str, _NextZone]]) -> str:
    return "; ".join(f"{zone}: {error}" for zone, error in tried)


def _with_history(report: Report, tried: list[tuple[str, _NextZone]]) -> Report:
    return lambda text: report(f"{text}; tried {_describe_zones(tried)}" if tried else text)


@dataclass(slots=True)
class _ZoneSearch:
    deleter: NodeDeleter
    resource_inventory: ResourceInventory
    settings: TpuSettings
    mode: ProvisioningMode
    report: Report
    may_exist: bool  # the resource exists, or may do so after a request without an answer
    is_last: bool  # no other zone is left
    _state: str = ""
    _since: str = ""
    _trouble: str = ""
    _again: str = ""
    _refused_until: str = ""
    _not_ready_at: float = 0.0
    _unhealthy_since: float | None = None

    def run(self, spec: LaunchSpec, request: NodeRequest, zone: str, seconds: float) -> ReservedTpu:
        until = time.monotonic() + seconds
        name = f"{zone}/{request.id}"
        entry = self.resource_inventory.record_intent(
            self.mode.kind, name, job_id=spec.job_id, attempt=spec.attempt, price=request.price
        )
        if entry is None:
            raise LaunchError("internal_error", f"{name} belongs to another attempt")
        retry_budget = RetryBudget(times.API_RETRY_SECONDS)
        while True:
            self._report_state(entry)
            delay = self.settings.poll_seconds
            try:
                entry, node = self._step(entry, request, until)
            except ApiUnavailable as error:
                self._bear(error, entry, retry_budget)
                self._report_state(entry)
                delay = max(delay, error.delay)
            except ApiRefused as error:
                self._release(entry, error.detail)
                if error.reason in {CAPACITY, QUOTA} or (error.reason == DENIED and zone in error.detail):
                    raise _NextZone(error.detail, error.reason) from error
                raise LaunchError(error.reason, error.detail) from error
            else:
                retry_budget.record_answer()
                self._trouble = self._refused_until = ""
                if node is not None:
                    return ReservedTpu(entry, node)
            if time.monotonic() >= until:
                self._release(entry, "not available in time")
                raise _NextZone(f"not available within {max(0.0, seconds):.0f} s")
            pause(delay, spec.check)

    def _bear(self, error: ApiUnavailable, entry: ResourceEntry, retry_budget: RetryBudget) -> None:
        """Ask again in a while; for a permission without which nothing was requested, only in the last zone."""
        self._trouble = f"; requested again, because Google reports: {error}"
        if not isinstance(error, NotPermitted) or self.may_exist:
            retry_budget.record_failure(error)
            return
        seconds = times.GRANT_SECONDS
        self._refused_until = self._refused_until or _clock(seconds)
        self._trouble += f" (until {self._refused_until}, since a role that was just granted takes minutes to apply)"
        if entry.zone not in str(error):
            retry_budget.record_failure(error, seconds)
        elif not self.is_last or retry_budget.is_over(seconds):
            self._release(entry, str(error))
            raise _NextZone(str(error), DENIED) from error

    def _step(self, entry: ResourceEntry, request: NodeRequest, until: float) -> tuple[ResourceEntry, Node | None]:
        """Query once, and request the device if none exists."""
        requested_at = time.time()
        status = self.mode.status(entry)
        if not status.exists:
            if self._state:
                self._again = f", requested again after something other than this service deleted it at {_clock()}"
            self._state = ""
            try:
                self.may_exist = True
                operation = self.mode.create(entry.zone, request, max(60.0, until - time.monotonic()))
            except (ApiRefused, NotPermitted):
                self.may_exist = False
                raise
            self.resource_inventory.update(entry, state="requested", operation=operation)
            return replace(entry, operation=operation), None
        self.may_exist = True
        health = status.node.health if status.node is not None else None
        state = status.state if health in {None, "UNSPECIFIED", "HEALTHY"} else f"{status.state}, {health}"
        if state != self._state:
            self._state, self._since = state, _clock()
            self.resource_inventory.update(entry, state=status.state, health=health)
            if status.node is not None:
                record_billing(self.resource_inventory, entry, status.node, not_ready_at=self._not_ready_at)
        if status.state != node_state.READY:
            self._not_ready_at = requested_at
        if status.failure is not None:
            self._release(entry, status.failure.detail)
            raise LaunchError(status.failure.reason, status.failure.detail)
        return entry, self._check_health(entry, status.node, request.hosts)

    def _check_health(self, entry: ResourceEntry, node: Node | None, hosts: int) -> Node | None:
        """Return the node if a job can run on it; release one that stays unhealthy."""
        if node is None or node.state != node_state.READY:  # not billed meanwhile
            self._unhealthy_since = None
            return None
        failure = node_state.temporary_failure(node) or node_state.address_failure(node, hosts)
        if failure is None:
            return node
        self._unhealthy_since = self._unhealthy_since or time.monotonic()
        lasts = time.monotonic() - self._unhealthy_since >= times.UNHEALTHY_SECONDS
        if lasts or failure.reason == DENIED:
            self._release(entry, failure.detail)
            raise LaunchError(failure.reason, failure.detail)
        return None

    def _report_state(self, entry: ResourceEntry) -> None:
        since = f"{self._state} since {self._since}" if self._state else "is asked for"
        self.report(f"{self.mode.label} {entry.name}: {since}{self._again}{self._trouble}")

    def _release(self, entry: ResourceEntry, why: str) -> None:
        self._report_state(entry)  # only the job's holder may delete its device, also after the host was frozen
        if not self.may_exist:  # Google refused to create it
            self.resource_inventory.record_deletion(entry, gone=True, detail=why)
            return
        self.deleter.try_remove(entry, why)


def _clock(seconds: float = 0.0) -> str:
    return f"{datetime.now(UTC) + timedelta(seconds=seconds):%H:%M:%S} UTC"


@dataclass(frozen=True, slots=True)
class _NodePool:
    """Existing nodes that jobs take in turn."""

    api: TpuApi
    resource_inventory: ResourceInventory
    settings: TpuSettings
    prepare_zone: Callable[[str], None]
    spot_price: float | None

    def take(self, spec: LaunchSpec, until: float, report: Report, confirm: Callable[[], None]) -> ReservedTpu:
        names = self.settings.pool.get(spec.machine_type, [])
        if not names:
            raise LaunchError("tpu_denied", f"GRADIENT_TPU__POOL names no node for {spec.machine_type}")
        retry_budget = RetryBudget(times.API_RETRY_SECONDS)
        failures: dict[str, NodeFailure] = {}
        recheck_at = 0.0
        while True:
            if time.monotonic() >= recheck_at:
                failures.clear()
                recheck_at = time.monotonic() + _RECHECK_POLLS * self.settings.poll_seconds
            delay = self.settings.poll_seconds
            try:
                device = self._reserve_first(spec, [name for name in names if name not in failures], failures, confirm)
                retry_budget.record_answer()
                waits_for = _describe_wait(failures, len(names))
            except ApiUnavailable as error:
                denied = isinstance(error, NotPermitted)
                retry_budget.record_failure(error, times.GRANT_SECONDS if denied else None)
                device, waits_for, delay = (
                    None,
                    f"requested again, because Google reports: {error}",
                    max(delay, error.delay),
                )
            if device is not None:
                return device
            self._check_wait(failures, len(names), until)
            report(waits_for)
            pause(delay, spec.check)

    def _reserve_first(
        self, spec: LaunchSpec, names: list[str], failures: dict[str, NodeFailure], confirm: Callable[[], None]
    ) -> ReservedTpu | None:
        """Reserve the first of these nodes that is free and healthy; add the problems of others to `failures`."""
        held = [
            entry
            for entry in self.resource_inventory.list_of_attempt(spec.job_id, spec.attempt)
            if not entry.over and entry.kind == POOL
        ]
        mine = {entry.name for entry in held}
        for name in [*mine, *(name for name in names if name not in mine)]:
            self.prepare_zone(name.partition("/")[0])
            entry = self.resource_inventory.record_intent(POOL, name, job_id=spec.job_id, attempt=spec.attempt)
            if entry is None:
                continue  # another job has it
            try:
                node = self._check_node(entry)
            except ApiUnavailable as error:
                if name not in mine:  # else its job may run there
                    confirm()  # another worker may hold this job, and run it on the node
                    self.resource_inventory.record_deletion(entry, gone=True, detail=str(error))
                raise
            if isinstance(node, Node):
                self.resource_inventory.update(entry, state=node.state, health=node.health)
                price = self.spot_price if node.spot else None
                self.resource_inventory.record_billing(entry, since=time.time(), price=price)  # its share of the pool
                return ReservedTpu(entry, node)
            confirm()
            self.resource_inventory.record_deletion(entry, gone=True, detail=node.detail)
            failures[name] = node
        return None

    def _check_node(self, entry: ResourceEntry) -> Node | NodeFailure:
        try:
            node = self.api.node(entry.zone, entry.cloud_id)
        except ApiRefused as error:
            return NodeFailure(error.reason, error.detail)
        if node is None:
            return NodeFailure(DENIED, f"the node {entry.name} from GRADIENT_TPU__POOL does not exist")
        return (
            node_state.permanent_failure(node)
            or node_state.temporary_failure(node)
            or node_state.address_failure(node, 1)
            or node
        )

    def _check_wait(self, failures: dict[str, NodeFailure], count: int, until: float) -> None:
        """Raise if waiting is useless, or has taken too long."""
        if len(failures) == count:
            worst = next(iter(failures.values()))
            raise LaunchError(worst.reason, "; ".join(failure.detail for failure in failures.values()))
        if time.monotonic() >= until:
            raise LaunchError(CAPACITY, f"{_describe_wait(failures, count)}, for too long")


def _describe_wait(failures: dict[str, NodeFailure], count: int) -> str:
    text = f"other jobs use {count - len(failures)} of the pool's {count} TPUs"
    return f"{text}; {'; '.join(failure.detail for failure in failures.values())}" if failures else text
