import shutil
from collections.abc import Iterator

from sqlalchemy.orm import Session

from core.formatting import GIB, format_duration
from core.jobs import queries
from core.jobs.queries import WORKER_STALE_SECONDS
from core.monitoring import snapshot
from core.monitoring.snapshot import ServiceSnapshot
from core.security import api_keys as keys
from core.security import credentials
from core.security.encryption import Vault
from core.settings import Settings
from gradient_server.checks import workers as fleet
from gradient_server.checks.finding import Finding, ok, problem, warning
from gradient_server.checks.host import job_sandbox

_MAX_SHOWN = 5
_TREND_DAYS = 7
_MIN_DAYS_LEFT = 14
_MAX_UNREADABLE_SHOWN = 3


def check(settings: Settings, session: Session) -> Iterator[Finding]:
    """Check everything that needs the database's tables."""
    taken = snapshot.collect(session)
    yield live_workers(taken)
    yield from fleet.check(taken)
    yield queue(taken)
    yield silent_jobs(settings, session)
    yield job_sandbox(settings, shared=not keys.are_readable(session) or keys.are_several(session))
    if settings.worker.service_url is None:
        yield _check_secrets(settings, session)
        yield disk_growth(settings, session)


def live_workers(snapshot: ServiceSnapshot) -> Finding:
    if not snapshot.workers:
        return warning(
            "worker",
            f"No worker was seen in the last {format_duration(WORKER_STALE_SECONDS)}.",
            "Start `gradient-server up`, or `gradient-server worker` on a machine that should run jobs.",
        )
    lines = [
        f"{worker.name} on {worker.host} offers {', '.join(worker.backends)} ({worker.held} of {worker.slots} slots in "
        "use)"
        for worker in snapshot.workers[:_MAX_SHOWN]
    ]
    more = len(snapshot.workers) - len(lines)
    return ok("worker", "; ".join(lines) + (f"; and {more} more." if more else "."))


def queue(snapshot: ServiceSnapshot) -> Finding:
    """Check that each waiting job has a worker that takes its machine type."""
    waiting = {pool: number for pool in snapshot.pools if (number := snapshot.count_waiting(pool))}
    stuck = [pool for pool in waiting if not snapshot.count_workers(pool)]
    if stuck:
        what = ", ".join(f"{waiting[pool]} for {pool[1]} (backend {pool[0]})" for pool in stuck)
        oldest = max(snapshot.oldest_queued[pool] for pool in stuck)
        return problem(
            "queue",
            f"No worker offers to run these waiting jobs: {what}; the oldest has waited for {format_duration(oldest)}.",
            "Start a worker for them, or resume a drained one (`gradient-server resume --name NAME`); "
            "GRADIENT_MACHINES__SIMULATE determines a job's backend.",
        )
    return ok("queue", f"Jobs that wait, each for a machine type that a worker offers: {sum(waiting.values())}.")


def silent_jobs(settings: Settings, session: Session) -> Finding:
    """Check that no job has been silent for longer than its lease."""
    lease = settings.worker.lease_seconds
    jobs = queries.stale_jobs(session, lease)
    if not jobs:
        return ok("leases", f"No job has missed heartbeats for longer than its lease of {format_duration(lease)}.")
    shown = ", ".join(f"{job.id} (worker {job.worker} on {job.host})" for job in jobs[:_MAX_SHOWN])
    more = f" and {len(jobs) - _MAX_SHOWN} more" if len(jobs) > _MAX_SHOWN else ""
    lost = format_duration(settings.worker.lost_after_seconds)
    return problem(
        "leases",
        f"Jobs without heartbeats for longer than the lease of {format_duration(lease)}: {shown}{more}.",
        f"Start a worker on that machine: it adopts them. Otherwise they count as lost after {lost}.",
    )


def disk_growth(settings: Settings, session: Session) -> Finding:
    """Check that logs and artifacts will not fill the disk soon."""
    kept = queries.stored_bytes(session, days=_TREND_DAYS)
    free = shutil.disk_usage(next(folder for folder in (settings.root, *settings.root.parents) if folder.exists())).free
    daily = kept / _TREND_DAYS
    trend = f"Jobs stored {daily / GIB:.2f} GiB a day in the last {_TREND_DAYS} days"
    if daily * _MIN_DAYS_LEFT > free:
        return warning(
            "growth",
            f"{trend}; {free / GIB:.0f} GiB are free, enough for {free / daily:.0f} days at that rate.",
            "Set GRADIENT_RETENTION__ARTIFACTS_DAYS or policies of projects, delete jobs, or move GRADIENT_HOME to a "
            "larger disk.",
        )
    return ok("growth", f"{trend}; the disk has room for more than {_MIN_DAYS_LEFT} days at that rate.")


def _check_secrets(settings: Settings, session: Session) -> Finding:
    """Check that this host's keys decrypt every secret and every registry password."""
    vault = Vault(settings)
    count, failed = credentials.check_decryptable(session, vault)
    if failed:
        more = f" And {len(failed) - _MAX_UNREADABLE_SHOWN} more." if len(failed) > _MAX_UNREADABLE_SHOWN else ""
        return problem(
            "secrets",
            f"Cannot be decrypted: {' '.join(failed[:_MAX_UNREADABLE_SHOWN])}{more}",
            f"Restore the keys in {vault.key_location} from a backup, the same on every host; "
            "or store those values again.",
        )
    return ok(
        "secrets",
        f"{count} secrets and passwords are stored, and the keys in {vault.key_location} decrypt all of them.",
    )
