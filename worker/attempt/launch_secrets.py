"""Secrets, registry passwords and ports of an attempt, looked up at launch and never stored."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

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
from worker.service_link.link import ServiceLink

T = TypeVar("T")


class LaunchSecrets:
    def __init__(self, settings: Settings, database: Database, job: Job, link: ServiceLink | None = None) -> None:
        self._vault = Vault(settings)
        self._database = database
        self._job = job
        self._link = link  # the service decrypts what this host has no key for

    def environment(self) -> dict[str, str]:
        """Return the user's environment with the values of the secrets it names."""
        if self._link is not None and self._job.spec.secrets():
            return dict(self._fetch(self._link, "environment"))
        return self._read(lambda session: credentials.resolve_env(session, self._vault, self._job))

    def login(self, image: str, *, push: bool = False) -> RegistryCredentials | None:
        """Return the login for an image's registry, to pull or to push."""
        if self._link is not None:
            found = self._fetch(self._link, "logins/registry", image=image, push=push)
            return RegistryCredentials(*found) if found else None
        return self._read(
            lambda session: credentials.registry_login_for(session, self._vault, self._job, image, push=push)
        )

    def git_login(self) -> str | None:
        """Return `user:password` for the git server of the job's workspace, if it needs one."""
        if self._link is not None:
            found = self._fetch(self._link, "logins/git")
            return str(found[0]) if found else None
        return self._read(lambda session: credentials.git_login(session, self._vault, self._job))

    def ports(self) -> tuple[PortForward, ...]:
        allocated = self._read(lambda session: port_allocations.ports_of_jobs(session, [self._job]))
        return tuple(PortForward(port.port, port.internal) for port in allocated.get(self._job.id, ()))

    def _read(self, query: Callable[[Session], T]) -> T:
        with _refusals_end_the_job(), self._database.read() as session:
            return query(session)

    def _fetch(self, link: ServiceLink, what: str, **query: object) -> Any:  # noqa: ANN401 - as sent
        with _refusals_end_the_job():
            return link.read_json("GET", f"jobs/{self._job.id}/{self._job.attempt}/{what}", query=query)


@contextmanager
def _refusals_end_the_job() -> Iterator[None]:
    try:
        yield
    except CredentialNotFound as error:
        raise LaunchError("secret_missing", error.message) from error
    except SecretUnreadable as error:
        raise LaunchError("secret_unreadable", error.message) from error
