from collections.abc import Callable, Iterable, Iterator

from core.formatting import format_duration
from core.monitoring.snapshot import WORKER_FORGOTTEN_SECONDS, ServiceSnapshot, WorkerStatus
from gradient_server.checks.finding import Finding, ok, warning

_MAX_SHOWN = 5
_RECENT_SECONDS = 24 * 3600
_ALARMING_KINDS = frozenset({"lost_jobs"})  # repairs that a healthy installation never needs


def check(snapshot: ServiceSnapshot) -> Iterator[Finding]:
    """Check every worker that was seen within a day."""
    yield silent_workers(snapshot)
    yield refusing(snapshot)
    yield drained(snapshot)
    yield without_broker_messages(snapshot)
    yield repairs(snapshot)


def silent_workers(snapshot: ServiceSnapshot) -> Finding:
    """Check that no worker seen within a day is silent now."""
    if snapshot.lost_workers:
        names = _list_workers(
            snapshot.lost_workers,
            lambda one: f"last seen {format_duration(one.heartbeat_age)} ago, with {one.held} jobs",
        )
        return warning(
            "silent",
            f"Silent: {names}.",
            "Start it again: its jobs keep running, and it adopts them. A worker that was removed is forgotten "
            f"after {format_duration(WORKER_FORGOTTEN_SECONDS)}.",
        )
    return ok("silent", "No worker seen in the last day is silent.")


def refusing(snapshot: ServiceSnapshot) -> Finding:
    """Check that every worker takes the jobs that it is set up for."""
    known = [one for one in (*snapshot.workers, *snapshot.lost_workers) if one.refusal is not None]
    if known:
        names = _list_workers(known, lambda one: (one.refusal or "").rstrip("."))
        return warning(
            "refusing",
            f"Take no jobs, or not all: {names}.",
            "Mend what each of them says; it takes jobs again by itself, or once it is started again.",
        )
    return ok("refusing", "No worker has told why it would take no jobs.")


def drained(snapshot: ServiceSnapshot) -> Finding:
    resting = [one for one in (*snapshot.workers, *snapshot.lost_workers) if one.drained_age is not None]
    if resting:
        names = _list_workers(
            resting, lambda one: f"since {format_duration(one.drained_age or 0.0)}, {one.held} jobs left"
        )
        return warning(
            "drained",
            f"Drained, so they claim no jobs: {names}.",
            "Run `gradient-server resume --name NAME` when the work on that machine is done.",
        )
    return ok("drained", "No worker is drained.")


def without_broker_messages(snapshot: ServiceSnapshot) -> Finding:
    silent = [one for one in snapshot.workers if one.broker_silent]
    if silent:
        names = _list_workers(silent, lambda one: f"no message for {format_duration(one.message_age or 0.0)}")
        return warning(
            "messages",
            f"Without messages from the broker: {names}. They find jobs only by polling the database.",
            "Restart that worker; its jobs keep running. If that does not help, check the broker and "
            "GRADIENT_QUEUE__BROKER_URL.",
        )
    count = sum(one.message_age is not None for one in snapshot.workers)
    return ok("messages", f"{count} workers use the broker; all receive its messages.")


def repairs(snapshot: ServiceSnapshot) -> Finding:
    """Check that the sweeps repaired nothing that points to lost machines."""
    ill = [one for one in snapshot.repairs if one.kind in _ALARMING_KINDS and one.last < _RECENT_SECONDS]
    if ill:
        what = ", ".join(f"{one.kind}, last {format_duration(one.last)} ago, noticed by {one.worker}" for one in ill)
        return warning(
            "repairs",
            f"Machines were lost in the last day: {what}.",
            "Check the logs of those machines for failures of power, network or memory.",
        )
    done = ", ".join(f"{one.kind} {one.total} (last {format_duration(one.last)} ago)" for one in snapshot.repairs)
    return ok("repairs", f"The sweeps repaired so far: {done}." if done else "The sweeps had nothing to repair so far.")


def _list_workers(workers: Iterable[WorkerStatus], describe: Callable[[WorkerStatus], str]) -> str:
    named = [f"{one.name} on {one.host} ({describe(one)})" for one in workers]
    more = f"; and {len(named) - _MAX_SHOWN} more" if len(named) > _MAX_SHOWN else ""
    return "; ".join(named[:_MAX_SHOWN]) + more
