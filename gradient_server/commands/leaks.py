"""`gradient-server leaks`: what Google bills under this service's labels, and which jobs own it."""

import argparse
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import partial

from google.api_core.exceptions import NotFound
from sqlalchemy.orm import Session

from core.db.database import Database
from core.errors import GradientError
from core.jobs import cloud_resources, queries
from core.jobs.states import OWNED, TERMINAL
from core.settings import Settings
from gradient_server.commands.keys import open_database
from worker.backends.tpu.api import ApiError, TpuApi
from worker.backends.tpu.orphans import list_labelled
from worker.backends.tpu.provisioning.node_request import LABEL, LABEL_ATTEMPT, LABEL_JOB
from worker.backends.tpu.resource_inventory import QUEUED
from worker.backends.tpu.storage.job_storage import make_bucket_opener, region_of
from worker.database_resource_inventory import DatabaseResourceInventory


@dataclass(frozen=True, slots=True)
class _Resource:
    id: str
    kind: str
    owner: str
    is_leak: bool
    delete: Callable[[], object]


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """List them, or delete one; return 1 if some are owned by no living job, or a zone or bucket did not answer."""
    if settings.tpu.backend is None:
        raise GradientError(
            "No Google Cloud project is set (GRADIENT_TPU__PROJECT), so the service bills nothing there."
        )
    failures: list[str] = []
    with closing(open_database(settings)) as database:
        # Regions may have one bucket together.
        resources = list({row.id: row for row in _list_resources(settings, database, failures)}.values())
    if parsed.delete is not None:
        return _delete(resources, parsed.delete, confirmed=parsed.yes)
    if parsed.json:
        rows = [{"id": row.id, "kind": row.kind, "owner": row.owner, "leak": row.is_leak} for row in resources]
        print(json.dumps({"resources": rows, "failures": failures}, indent=2))
    else:
        for row in sorted(resources, key=lambda row: not row.is_leak):
            print(f"{'LEAK' if row.is_leak else '':5} {row.kind:16} {row.id:50} {row.owner}")
        leaks = sum(row.is_leak for row in resources)
        print(*(f"error: {failure}" for failure in failures), sep="\n", end="\n" if failures else "")
        print(f"{len(resources)} billed, {leaks} of them owned by no living job of this installation.")
    return int(bool(failures) or any(row.is_leak for row in resources))


def _list_resources(settings: Settings, database: Database, failures: list[str]) -> Iterator[_Resource]:
    api, opened = TpuApi(settings.tpu), make_bucket_opener(settings)
    installation = DatabaseResourceInventory(database, socket.gethostname()).installation()
    with database.read() as session:
        recorded = {resource.name.partition("/")[0] for resource in cloud_resources.list_open(session)}
        zones = sorted({*settings.tpu.zones, *recorded})
        for zone in zones:
            try:
                for kind, resource in list_labelled(api, zone):
                    attempt = resource.labels.get(LABEL_ATTEMPT, "")
                    owner, is_leak = f"installation {resource.labels[LABEL]}", False
                    if resource.labels[LABEL] == installation:
                        owner, is_leak = _owner(session, resource.labels.get(LABEL_JOB, ""), attempt)
                    delete = partial(api.delete_queued if kind == QUEUED else api.delete_node, zone, resource.id)
                    yield _Resource(f"{zone}/{resource.id}", kind, owner, is_leak, delete)
            except ApiError as error:
                failures.append(f"{zone}: {error}")
        for region in sorted({region_of(zone) for zone in zones}):
            try:
                if opened is None:
                    break
                bucket = opened(region)
                for job_id in bucket.jobs():
                    name, remove = f"gs://{bucket.name}/jobs/{job_id}", partial(bucket.remove, job_id)
                    yield _Resource(name, "files", *_owner(session, job_id, None), remove)
            except GradientError as error:
                if not isinstance(error.__cause__, NotFound):  # then no job has needed it yet
                    failures.append(error.message)


def _owner(session: Session, job_id: str, attempt: str | None) -> tuple[str, bool]:
    """Describe the owner of a machine, or of files (then `attempt` is None); return also whether it is a leak."""
    job = queries.get_row(session, job_id)
    if job is None:
        return ("another installation", False) if attempt is None else ("no job", True)
    needs = job.state not in TERMINAL if attempt is None else job.state in OWNED and attempt == str(job.attempt)
    return (f"job {job_id}", False) if needs else (f"job {job_id}, which no longer needs it", True)


def _delete(resources: list[_Resource], resource_id: str, *, confirmed: bool) -> int:
    resource = next((row for row in resources if row.id == resource_id), None)
    if resource is None:
        raise GradientError(f"There is no resource {resource_id!r}. `gradient-server leaks` lists them.")
    if not resource.is_leak:
        raise GradientError(f"{resource_id} is owned by {resource.owner}, so it is not deleted here.")
    if not confirmed and input(f"Delete {resource.kind} {resource_id}, of {resource.owner}? [y/N] ").lower() != "y":
        print("Nothing was deleted.")
        return 1
    resource.delete()
    print(f"{resource_id} is being deleted.")
    return 0
