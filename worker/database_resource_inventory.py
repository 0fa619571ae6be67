import json
import time
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, delete, exists, or_, select, update
from sqlalchemy.orm import Session

from core.db.database import Database, now
from core.db.models.jobs import Job
from core.ids import new_id
from core.jobs.cloud_resources import (
    REFUSAL,
    UNOWNED,
    CloudResource,
    InstallationValue,
    find_refusal,
    find_unowned,
)
from core.jobs.guarded_updates import insert_ignore
from core.jobs.states import OWNED
from worker.backends.tpu.resource_inventory import ResourceEntry

_CLOUD_NAME = "cloud-name"
_VALUE_LENGTH = 255
_NOT_DELETED = CloudResource.gone_at.is_(None)
_NOT_DELETING = _NOT_DELETED & CloudResource.deleting_at.is_(None)


class DatabaseResourceInventory:
    """Implements `ResourceInventory` on the database; each call is its own transaction."""

    def __init__(self, database: Database, host: str) -> None:
        self._database = database
        self._host = host
        self._installation: str | None = None

    def installation(self) -> str:
        """See `ResourceInventory.installation`: it marks this database's resources in the cloud project."""
        if self._installation is None:
            with self._database.write() as session:
                made = insert_ignore(session.get_bind().dialect.name, InstallationValue)
                session.execute(made.values(name=_CLOUD_NAME, value=new_id("g")))
                named = select(InstallationValue.value).where(InstallationValue.name == _CLOUD_NAME)
                self._installation = session.scalars(named).one()
        return self._installation

    def record_intent(
        self, kind: str, name: str, *, job_id: str, attempt: int, price: float | None = None
    ) -> ResourceEntry | None:
        with self._database.write() as session:
            if session.scalar(select(Job.id).where(Job.id == job_id)) is None:
                return None
            made = insert_ignore(session.get_bind().dialect.name, CloudResource).values(
                kind=kind,
                name=name,
                job_id=job_id,
                attempt=attempt,
                host=self._host,
                state="intended",
                intended_at=now(),
                price_per_hour=price,
            )
            session.execute(made)
            held = _select_entries(session, _NOT_DELETED, CloudResource.name == name)
        return next((entry for entry in held if (entry.job_id, entry.attempt) == (job_id, attempt)), None)

    def update(
        self,
        entry: ResourceEntry,
        *,
        state: str,
        health: str | None = None,
        detail: str | None = None,
        operation: str | None = None,
    ) -> None:
        with self._database.write() as session:
            _update(
                session,
                entry,
                _NOT_DELETING,
                seen_at=now(),
                state=state,
                health=health,
                detail=detail,
                operation=operation,
            )

    def record_billing(
        self,
        entry: ResourceEntry,
        *,
        since: float | None = None,
        until: float | None = None,
        price: float | None = None,
    ) -> None:
        with self._database.write() as session:
            if since is not None:
                _update(session, entry, CloudResource.billed_at.is_(None), billed_at=_utc(since), price_per_hour=price)
            if until is not None:
                is_billed = CloudResource.billed_at.is_not(None)
                _update(session, entry, is_billed, CloudResource.billed_until.is_(None), billed_until=_utc(until))

    def record_deletion(self, entry: ResourceEntry, *, gone: bool, detail: str | None = None) -> None:
        with self._database.write() as session:
            if gone:
                _update(session, entry, _NOT_DELETED, gone_at=now(), state="gone", detail=detail)
            else:
                _update(
                    session,
                    entry,
                    CloudResource.deleting_at.is_(None),
                    deleting_at=now(),
                    state="deleting",
                    detail=detail,
                )

    def record_refusal(self, why: str | None) -> None:
        with self._database.read() as session:
            if (find_refusal(session) is None) == (why is None):
                return
        with self._database.write() as session:
            if why is None:
                session.execute(delete(InstallationValue).where(InstallationValue.name == REFUSAL))
            else:
                made = insert_ignore(session.get_bind().dialect.name, InstallationValue)
                text = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC: {why}"
                session.execute(made.values(name=REFUSAL, value=text[:_VALUE_LENGTH]))

    def record_unowned(self, owners: dict[str, str]) -> None:
        with self._database.read() as session:
            if find_unowned(session) == owners:
                return
        with self._database.write() as session:
            session.execute(delete(InstallationValue).where(InstallationValue.name == UNOWNED))
            made = insert_ignore(session.get_bind().dialect.name, InstallationValue)
            session.execute(made.values(name=UNOWNED, value=json.dumps(owners)))

    def list_of_attempt(self, job_id: str, attempt: int) -> list[ResourceEntry]:
        return self._list(CloudResource.job_id == job_id, CloudResource.attempt == attempt)

    def list_on_host(self) -> list[ResourceEntry]:
        return self._list(CloudResource.host == self._host, _NOT_DELETING)

    def list_orphaned(self) -> list[ResourceEntry]:
        owned = exists().where(
            Job.id == CloudResource.job_id, Job.attempt == CloudResource.attempt, Job.state.in_(OWNED)
        )
        return self._list(_NOT_DELETED, or_(~owned, CloudResource.deleting_at.is_not(None)))

    def _list(self, *conditions: ColumnElement[bool]) -> list[ResourceEntry]:
        with self._database.read() as session:
            return _select_entries(session, *conditions)


def _utc(unix_time: float) -> datetime:
    return datetime.fromtimestamp(unix_time, UTC)


def _update(session: Session, entry: ResourceEntry, *conditions: ColumnElement[bool], **values: Any) -> None:  # noqa: ANN401 - column values
    """Write these values to the entry's row if it meets the conditions; None leaves a column as it is."""
    given = {name: value for name, value in values.items() if value is not None}
    session.execute(update(CloudResource).where(CloudResource.id == entry.id, *conditions).values(**given))


def _select_entries(session: Session, *conditions: ColumnElement[bool]) -> list[ResourceEntry]:
    current = session.scalars(select(now())).one().astimezone(UTC)
    return [
        ResourceEntry(
            id=row.id,
            kind=row.kind,
            name=row.name,
            job_id=row.job_id,
            attempt=row.attempt,
            operation=row.operation,
            recorded_at=time.time() - (current - row.intended_at).total_seconds(),
            over=row.gone_at is not None or row.deleting_at is not None,
        )
        for row in session.scalars(select(CloudResource).where(*conditions).order_by(CloudResource.id))
    ]
