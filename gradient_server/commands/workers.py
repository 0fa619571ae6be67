"""`gradient-server workers|drain|resume`: list, invite and remove workers, and stop or resume them."""

import argparse
import json
import socket
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from core.db.database import Database
from core.db.models.credentials import WorkerToken
from core.errors import NotFound, SpecInvalid, WorkerNotFound
from core.formatting import iso_time
from core.jobs.scheduling import workers
from core.security import worker_logins, worker_tokens
from core.settings import Settings
from gradient_server.commands.keys import open_database

_POLL_SECONDS = 1.0
_MAX_SHOWN = 5


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    with closing(open_database(settings)) as database:
        if parsed.command == "workers" and parsed.verb:
            return _change(parsed, settings, database)
        if parsed.command == "workers":
            return _list(database, as_json=parsed.json)
        return _set_drained(parsed, database)


def _list(database: Database, *, as_json: bool) -> int:
    with database.read() as session:
        rows = _worker_rows(session)
    if as_json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print("No worker has reported yet. `gradient-server worker` starts one.")
    else:
        print(f"{'NAME':24} {'STATE':9} {'JOBS':>7} {'GPUS':>5}  TAKES")
        for row in rows:
            places = f"{row['jobs']}/{row['slots']}"
            gpus = "-" if row["gpus"] is None else str(len(row["gpus"]))
            takes = ", ".join(row["machineTypes"] or ["all types"]) + f" ({', '.join(row['backends'])})"
            broken = (f"GPU {gpu} is broken: {fault}" for gpu, fault in row["gpuFaults"].items())
            parts = (
                takes if row["backends"] else "nothing",
                row["refusal"],
                row["lowDisk"],
                row["drainReason"],
                *broken,
            )
            print(f"{row['name']:24} {row['state']:9} {places:>7} {gpus:>5}  {'; '.join(filter(None, parts))}")
    return 0


def _change(parsed: argparse.Namespace, settings: Settings, database: Database) -> int:
    revoked: WorkerToken | None = None
    with database.write() as session:
        if parsed.verb == "invite":
            if settings.database.worker_url is None:
                raise SpecInvalid(
                    "GRADIENT_DATABASE__WORKER_URL, the PostgreSQL URL for other hosts, is not set. Set it here "
                    "and for the service, run `gradient-server migrate`, which creates its role, and try again.",
                    field="name",
                )
            print(f"gradient-server join {settings.public_url} --token {worker_tokens.invite(session)}")
        elif parsed.verb == "token":
            token = worker_tokens.create(session, parsed.name)
            _require_other_host(settings.root / "workers" / f"{parsed.name}.lock", parsed.name)
            print(token)
        elif parsed.verb == "revoke":
            revoked = worker_tokens.revoke(session, parsed.name)
            with suppress(WorkerNotFound):  # it never started
                workers.set_drained(session, parsed.name, drained=True)
        else:
            with suppress(NotFound):
                revoked = worker_tokens.revoke(session, parsed.name)
            try:
                workers.remove(session, parsed.name)
            except WorkerNotFound:
                if revoked is None:
                    raise  # else it joined, and never started
    left = [] if revoked is None else worker_logins.end(database, settings, revoked)
    for line in left:
        print(f"error: {line}", file=sys.stderr)
    if parsed.verb == "remove":
        print(f"Worker {parsed.name} was removed.")
    elif parsed.verb == "revoke":
        with database.write() as session:  # now that no heartbeat of it follows
            workers.refuse(session, parsed.name, "Its token was revoked. It takes no jobs until it has a new token.")
        print(f"The token of worker {parsed.name} was revoked: {_next_step(parsed.name, revoked)}")
    return int(bool(left))


def _next_step(name: str, revoked: WorkerToken | None) -> str:
    if revoked is not None and revoked.login is not None:
        return (
            f"it can no longer reach the service. To admit its host again, run `workers remove {name}`, then join "
            "it again."
        )
    return f"it claims no more jobs. Once it has a new token, undo this with `gradient-server resume --name {name}`."


def _require_other_host(lock: Path, name: str) -> None:
    """Refuse a token for a worker with this service's folders: users' sessions have one socket for each name."""
    if lock.exists():
        raise SpecInvalid(
            f"A worker named {name!r} uses this service's GRADIENT_HOME ({lock}), so it needs no token, and a "
            "worker on another host needs another name. If that worker no longer exists, remove the file and try "
            "again.",
            field="name",
        )


def _worker_rows(session: Session) -> list[dict[str, Any]]:
    jobs = workers.held_job_counts(session)
    return [
        {
            "name": worker.name,
            "host": worker.host,
            "state": state,
            "jobs": jobs.get(worker.name, 0),
            "slots": worker.slots,
            "backends": worker.backends,
            "machineTypes": worker.machine_types,
            "gpus": worker.gpus,
            "cpus": worker.cpus,
            "memoryMb": worker.memory_mb,
            "refusal": worker.refusal,
            "lowDisk": worker.low_disk,
            "drainReason": worker.drain_reason,
            "gpuFaults": worker.gpu_faults or {},
            "seenAt": iso_time(worker.seen_at),
        }
        for worker, state in workers.states(session)
    ]


def _set_drained(parsed: argparse.Namespace, database: Database) -> int:
    name = parsed.name or socket.gethostname()
    drained = parsed.command == "drain"
    with database.write() as session:
        workers.set_drained(session, name, drained=drained)
    if not drained:
        print(f"Worker {name} claims jobs again.")
        return 0
    print(f"Worker {name} claims no more jobs. Undo this with `gradient-server resume --name {name}`.")
    return _wait_until_empty(database, name, parsed.timeout) if parsed.wait else 0


def _wait_until_empty(database: Database, name: str, timeout: float | None) -> int:
    """Wait until the worker has no jobs; return 1 if some are left after `timeout` seconds, 130 after Ctrl-C."""
    deadline = None if timeout is None else time.monotonic() + timeout
    printed = ""
    try:
        while left := _job_ids(database, name):
            few = ", ".join(left[:_MAX_SHOWN]) + (", …" if len(left) > _MAX_SHOWN else "")
            line = f"{len(left)} job{'s' * (len(left) > 1)} still run{'s' * (len(left) == 1)}: {few}"
            if line != printed:
                print(line, file=sys.stderr, flush=True)
                printed = line
            if deadline is not None and time.monotonic() >= deadline:
                print(f"error: worker {name} still has jobs after {timeout:g} s; it stays drained.", file=sys.stderr)
                return 1
            time.sleep(_POLL_SECONDS)
    except KeyboardInterrupt:
        print(f"\nStopped waiting; worker {name} stays drained.", file=sys.stderr)
        return 130
    print(f"Worker {name} is empty: no jobs are running on it.")
    return 0


def _job_ids(database: Database, name: str) -> list[str]:
    with database.read() as session:
        return [job.id for job in workers.held_jobs(session, name)]
