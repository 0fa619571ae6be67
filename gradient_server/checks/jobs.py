import json
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy.orm import Session

from core.errors import Unauthorized
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
from worker.attempt.scratch import list_scratch_folders

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
    has_services_files, may_read_keys = settings.worker.service_url is None, keys.are_readable(session)
    if may_read_keys:
        yield api_keys(session)
    yield job_sandbox(settings, shared=not may_read_keys or keys.are_several(session))
    if has_services_files:
        yield _check_secrets(settings, session)
        yield disk_growth(settings, session)
    if has_services_files and may_read_keys:
        yield client_file(settings.root / "cli.json", session)
    yield leftover_scratch(settings, session)


def live_workers(snapshot: ServiceSnapshot) -> Finding:
    if not snapshot.workers:
        return warning(
            "worker",
            f"No worker was seen in the last {format_duration(WORKER_STALE_SECONDS)}.",
            "Start `gradient-server up`, or `gradient-server worker` on a machine that should run jobs.",
        )
    lines = [
        f"{one.name} on {one.host} offers {', '.join(one.backends)} ({one.held} of {one.slots} slots in use)"
        for one in snapshot.workers[:_MAX_SHOWN]
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
            f"Jobs wait that no worker offers to run: {what}; the oldest for {format_duration(oldest)}.",
            "Start a worker for them, or resume a drained one (`gradient-server resume --name NAME`); "
            "GRADIENT_MACHINES__SIMULATE determines the backend of a job.",
        )
    return ok("queue", f"{sum(waiting.values())} jobs wait, each for a machine type that a worker offers.")


def silent_jobs(settings: Settings, session: Session) -> Finding:
    """Check that no job has been silent for longer than its lease."""
    lease = settings.worker.lease_seconds
    jobs = queries.stale_jobs(session, lease)
    if not jobs:
        return ok("leases", f"No job has been silent for longer than its lease of {format_duration(lease)}.")
    shown = ", ".join(f"{job.id} (worker {job.worker} on {job.host})" for job in jobs[:_MAX_SHOWN])
    more = f" and {len(jobs) - _MAX_SHOWN} more" if len(jobs) > _MAX_SHOWN else ""
    lost = format_duration(settings.worker.lost_after_seconds)
    return problem(
        "leases",
        f"Silent for longer than the lease of {format_duration(lease)}: {shown}{more}.",
        f"Start a worker on that machine: it adopts them. Otherwise they count as lost after {lost}.",
    )


def api_keys(session: Session) -> Finding:
    valid = sum(keys.state(key) == "valid" for key in keys.list_keys(session))
    if not valid:
        return problem("keys", "No API key is valid.", "Run `gradient-server keys create NAME`.")
    return ok("keys", f"{valid} API key{'s are' if valid > 1 else ' is'} valid.")


def client_file(path: Path, session: Session) -> Finding:
    """Check that the file with this machine's API key is private, and that the key works."""
    again = "Start `gradient-server up` or `gradient-server api`: it writes the file again."
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        secret = json.loads(path.read_text(encoding="utf-8"))["apiKey"]
    except FileNotFoundError:
        return warning("client", f"{path} does not exist: the client on this machine has no address and no key.", again)
    except (OSError, ValueError, KeyError, TypeError):
        return warning("client", f"{path} cannot be read.", again)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        return problem(
            "client",
            f"Others can read the key in {path} (mode {mode:04o}).",
            f"Run `chmod 600 {path}`; if others use this machine, also revoke the key: the next start creates another.",
        )
    try:
        keys.authenticate(session, str(secret))
    except Unauthorized as error:
        return warning("client", f"The key in {path} does not work. {error.message}", again)
    return ok("client", f"{path} is private and its key works.")


def leftover_scratch(settings: Settings, session: Session) -> Finding:
    """Check that no scratch folder is left that belongs to no running job."""
    # The folders first: a job that starts between the two reads must not seem to be left over.
    found = list_scratch_folders(settings.root / "attempts")
    left = [f"{job_id}-{attempt}" for job_id, attempt in sorted(set(found) - queries.held_attempts(session))]
    if left:
        number = "1 folder" if len(left) == 1 else f"{len(left)} folders"
        return warning(
            "scratch",
            f"Left in {settings.root / 'attempts'} without a running job: {number} ({', '.join(left[:_MAX_SHOWN])}).",
            f"Start a worker here: it removes them within {format_duration(settings.worker.sweep_seconds)}.",
        )
    return ok(
        "scratch",
        f"{len(found)} scratch folders, {len(left)} of them kept on purpose."
        if left
        else "No scratch folder is left over.",
    )


def disk_growth(settings: Settings, session: Session) -> Finding:
    """Check that logs and artifacts will not fill the disk soon."""
    kept = queries.stored_bytes(session, days=_TREND_DAYS)
    free = shutil.disk_usage(next(place for place in (settings.root, *settings.root.parents) if place.exists())).free
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
