from collections.abc import Callable, Iterable, Iterator

from core.formatting import format_duration
from core.monitoring.snapshot import WORKER_FORGOTTEN_SECONDS, ServiceSnapshot, WorkerStatus
from gradient_server.checks.finding import Finding, ok, warning

_MAX_SHOWN = 5


def check(snapshot: ServiceSnapshot) -> Iterator[Finding]:
    """Check every worker that was seen within a day."""
    yield silent_workers(snapshot)
    yield refusing(snapshot)


def silent_workers(snapshot: ServiceSnapshot) -> Finding:
    """Check that no worker seen within a day is silent now."""
    if snapshot.lost_workers:
        names = _list_workers(
            snapshot.lost_workers,
            lambda worker: f"last seen {format_duration(worker.heartbeat_age)} ago, with {worker.held} jobs",
        )
        return warning(
            "silent",
            f"Silent: {names}.",
            "Start it again: its jobs keep running, and it adopts them. Removed workers are forgotten after "
            f"{format_duration(WORKER_FORGOTTEN_SECONDS)}.",
        )
    return ok("silent", "No worker seen in the last day is silent.")


def refusing(snapshot: ServiceSnapshot) -> Finding:
    """Check that every worker takes the jobs that it is set up for."""
    refused = [worker for worker in (*snapshot.workers, *snapshot.lost_workers) if worker.refusal is not None]
    if refused:
        names = _list_workers(refused, lambda worker: (worker.refusal or "").rstrip("."))
        return warning(
            "refusing",
            f"Workers that refuse some or all jobs: {names}.",
            "Fix the problem that each of them reports; it then takes jobs again by itself or after a restart.",
        )
    return ok("refusing", "No worker refuses jobs.")


def _list_workers(workers: Iterable[WorkerStatus], describe: Callable[[WorkerStatus], str]) -> str:
    named = [f"{worker.name} on {worker.host} ({describe(worker)})" for worker in workers]
    more = f"; and {len(named) - _MAX_SHOWN} more" if len(named) > _MAX_SHOWN else ""
    return "; ".join(named[:_MAX_SHOWN]) + more
