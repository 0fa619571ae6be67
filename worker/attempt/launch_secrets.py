"""Secrets, registry passwords and ports of an attempt, looked up at launch and never stored."""

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy.orm import Session

from core.catalogue.registry_hosts import RegistryCredentials
from core.db.database import Database
from core.db.models.jobs import Job
from core.errors import CredentialNotFound, SecretUnreadable
from core.jobs.scheduling import port_allocations
from core.security import credentials
from core.security.encryption import Vault
from core.settings import Settings
from worker.backends.base import LaunchError, PortForward

T = TypeVar("T")


class LaunchSecrets:
    """Secrets, logins and ports of one job."""

    def __init__(self, settings: Settings, database: Database, job: Job) -> None:
        self._vault = Vault(settings)
        self._database = database
        self._job = job

    def environment(self) -> dict[str, str]:
        """Return the user's environment with the values of the secrets it names."""
        return self._read(lambda session: credentials.resolve_env(session, self._vault, self._job))

    def login(self, image: str, *, push: bool = False) -> RegistryCredentials | None:
        """Return the login for an image's registry, to pull or to push."""
        return self._read(
            lambda session: credentials.registry_login_for(session, self._vault, self._job, image, push=push)
        )

    def git_login(self) -> str | None:
        """Return `user:password` for the git server of the job's workspace, if it needs one."""
        return self._read(lambda session: credentials.git_login(session, self._vault, self._job))

    def ports(self) -> tuple[PortForward, ...]:
        """Return the host ports allocated to the job."""
        allocated = self._read(lambda session: port_allocations.ports_of_jobs(session, [self._job]))
        return tuple(PortForward(port.port, port.internal) for port in allocated.get(self._job.id, ()))

    def _read(self, query: Callable[[Session], T]) -> T:
        try:
            with self._database.read() as session:
                return query(session)
        except CredentialNotFound as error:
            raise LaunchError("secret_missing", error.message) from error
        except SecretUnreadable as error:
            raise LaunchError("secret_unreadable", error.message) from error
