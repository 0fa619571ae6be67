"""What is looked up for an attempt at its launch and kept nowhere: values of secrets, passwords, its ports."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.orm import Session

from core import credentials
from core.db import Database
from core.errors import CredentialNotFound, SecretUnreadable
from core.image_registry import Login
from core.jobs import holds
from core.jobs.models import Job
from core.settings import Settings
from core.vault import Vault
from worker.backends.base import BackendError, PortMap

T = TypeVar("T")


class Grants:
    """What one job may have."""

    def __init__(self, settings: Settings, database: Database, job: Job) -> None:
        self._vault = Vault(settings)
        self._database = database
        self._job = job

    def environment(self) -> dict[str, str]:
        """The environment that the user asked for, with the values of the secrets it names.

        Raises:
            BackendError: One of them cannot be had.
        """
        return self._read(lambda session: credentials.with_values(session, self._vault, self._job))

    def login(self, image: str, *, push: bool = False) -> Login | None:
        """How to sign in to the registry of an image, to pull it or to push it.

        Raises:
            BackendError: What is stored cannot be read.
        """
        return self._read(lambda session: credentials.login_for(session, self._vault, self._job, image, push=push))

    def git_login(self) -> str | None:
        """`user:password` for the git server of its workspace.

        Raises:
            BackendError: It cannot be read.
        """
        return self._read(lambda session: credentials.git_login(session, self._vault, self._job))

    def ports(self) -> tuple[PortMap, ...]:
        """The host's ports that the job has."""
        held = self._read(lambda session: holds.ports_of(session, [self._job]))
        return tuple(PortMap(port.port, port.internal) for port in held.get(self._job.id, ()))

    def _read(self, look: Callable[[Session], T]) -> T:
        try:
            with self._database.read() as session:
                return look(session)
        except CredentialNotFound as error:
            raise BackendError("secret_missing", error.message) from error
        except SecretUnreadable as error:
            raise BackendError("secret_unreadable", error.message) from error
