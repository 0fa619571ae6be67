"""The database role and the broker's user of one worker: made when its host joins, ended with its token."""

import hashlib
import secrets
from contextlib import suppress
from importlib import import_module
from typing import Any

from sqlalchemy import make_url, select, update
from sqlalchemy.orm import Session

from core.db.database import Database
from core.db.models.credentials import WorkerToken
from core.errors import SpecInvalid
from core.settings import Settings

_SHOWN_CHARS = 40


def create(session: Session, settings: Settings, worker: str) -> dict[str, str]:
    """Return the settings with which a worker that has a token reaches database and broker.

    `warning`, among them: why it has to use a login of all workers.
    """
    login = f"gradient-{worker[:_SHOWN_CHARS]}-{secrets.token_hex(4)}"
    given, warnings, sha256 = {}, [], None
    if settings.database.worker_url is not None:
        given["GRADIENT_DATABASE__URL"] = settings.database.worker_url
        try:
            given["GRADIENT_DATABASE__URL"] = _worker_role().create_member(session, settings.database.worker_url, login)
        except SpecInvalid as error:
            warnings.append(
                "The worker shares its database role with all workers, so `workers revoke` does not remove that "
                f"role: {error.message}"
            )
    if settings.queue.broker_url is not None:
        given["GRADIENT_QUEUE__BROKER_URL"] = settings.queue.broker_url
        password = secrets.token_hex()
        try:
            sha256 = hashlib.sha256(password.encode()).digest()
            _broker_users().set_user(settings.queue.broker_url, login, sha256)
            broker = make_url(settings.queue.broker_url).set(username=login, password=password)
            given["GRADIENT_QUEUE__BROKER_URL"] = broker.render_as_string(hide_password=False)
        except OSError as error:
            sha256 = None
            warnings.append(
                "The worker shares its broker user with all workers, so `workers revoke` does not remove that "
                f"user: {error}"
            )
    values = {"login": login, "broker_sha256": sha256}
    session.execute(update(WorkerToken).where(WorkerToken.worker == worker).values(values))
    return given | ({"warning": "\n".join(warnings)} if warnings else {})


def end(database: Database, settings: Settings, token: WorkerToken) -> list[str]:
    """End the access to database and broker that came with a token which is gone; return what could not be ended."""
    left = []
    if token.login is not None and not database.is_sqlite:
        left.append(_worker_role().end_member(database, token.login))
    if token.broker_sha256 is not None and settings.queue.broker_url is not None:
        try:
            _broker_users().delete_user(settings.queue.broker_url, token.login)
        except OSError as error:
            left.append(f"The broker's user {token.login!r} still exists: {error}. Delete it with ACL DELUSER.")
    return [error for error in left if error is not None]


def keep_broker_user(database: Database, settings: Settings, worker: str) -> None:
    """Make a worker's user again if Redis has forgotten it, as at a restart without an `aclfile`."""
    url = settings.queue.broker_url
    of_worker = select(WorkerToken.login, WorkerToken.broker_sha256).where(WorkerToken.worker == worker)
    with database.read() as session:
        row = session.execute(of_worker).one_or_none()
    if url is None or row is None or row.broker_sha256 is None:
        return
    with suppress(OSError):  # the next request of the worker comes in seconds
        if _broker_users().is_missing(url, row.login):
            with database.write() as session:  # whoever revokes the token waits for this, and then deletes the user
                row = session.execute(of_worker.with_for_update()).one_or_none()
                if row is not None:
                    _broker_users().set_user(url, row.login, row.broker_sha256)


def _worker_role() -> Any:  # noqa: ANN401 - the module, which loads PostgreSQL's driver
    return import_module("core.db.worker_role")


def _broker_users() -> Any:  # noqa: ANN401 - the module
    return import_module("core.notify.broker_users")
