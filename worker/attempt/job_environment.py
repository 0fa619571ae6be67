"""The environment of an attempt. Its secrets are looked up at launch and never stored."""

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

from sqlalchemy.orm import Session

from core.catalogue.backends import Capabilities
from core.catalogue.registry_hosts import RegistryCredentials
from core.db.database import Database
from core.db.models.jobs import Job
from core.errors import CredentialNotFound, SecretUnreadable
from core.jobs.scheduling import port_allocations
from core.jobs.spec.container_options import is_in_workspace
from core.jobs.spec.job_spec import JobSpec
from core.security import credentials
from core.security.encryption import Vault
from core.settings import Settings
from worker.attempt.scratch import Scratch
from worker.backends import base
from worker.backends.base import LaunchError, PortForward
from worker.backends.job_connections import LOOPBACK
from worker.runner.control_files import may_have_launched
from worker.service_link.link import ServiceLink

_MASTER_PORT = 29500  # PyTorch's own default

T = TypeVar("T")


class LaunchSecrets:
    def __init__(self, settings: Settings, database: Database, job: Job, link: ServiceLink | None = None) -> None:
        self._vault = Vault(settings)
        self._database = database
        self._job = job
        self._link = link  # the service decrypts what this host has no key for

    def environment(self) -> dict[str, str]:
        """Return the user's environment with the values of the secrets it names."""
        if not self._job.spec.secrets():
            return dict(self._job.spec.env_vars)
        if self._link is not None:
            return dict(self._fetch(self._link, "environment"))
        with _refusals_end_the_job(), self._database.write() as session:
            return credentials.resolve_env(session, self._vault, self._job)

    def login(self, image: str, *, push: bool = False) -> RegistryCredentials | None:
        """Return the login for an image's registry, to pull or to push."""
        if self._link is not None:
            login = self._fetch(self._link, "logins/registry", image=image, push=push)
            return RegistryCredentials(*login) if login else None
        return self._read(
            lambda session: credentials.registry_login_for(session, self._vault, self._job, image, push=push)
        )

    def git_login(self) -> str | None:
        """Return `user:password` for the git server of the job's workspace, if it needs one."""
        if self._link is not None:
            logins = self._fetch(self._link, "logins/git")
            return str(logins[0]) if logins else None
        return self._read(lambda session: credentials.git_login(session, self._vault, self._job))

    def ports(self) -> tuple[PortForward, ...]:
        if not self._job.spec.ports:
            return ()
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


def _describe_array(job: Job) -> dict[str, str]:
    if job.array_id is None:
        return {}
    names = ("array_id", "array_index", "array_value")
    return {f"GRADIENT_{name.upper()}": str(getattr(job, name)) for name in names}


def _describe_commit(spec: JobSpec) -> dict[str, str]:
    """Return what is known of the commit of an uploaded folder."""
    if spec.code_commit is None:
        return {}
    return {
        "GRADIENT_GIT_COMMIT": spec.code_commit,
        "GRADIENT_GIT_BRANCH": spec.code_branch or "",
        "GRADIENT_GIT_DIRTY": "1" if spec.code_dirty else "0",
    }


def default_environment(capabilities: Capabilities, shared: Path) -> dict[str, str]:
    """Build the variables that those of the job replace: where its processes meet, for PyTorch, and libraries' caches.

    Jobs that share the host's network get a port each that is free now. The caches are in the project's storage, which
    is `shared` on this host.
    """
    port = _MASTER_PORT
    if not capabilities.own_network:
        with socket.create_server(("", 0)) as listener:
            port = listener.getsockname()[1]
    storage = Path(base.STORAGE) if capabilities.mounts else shared
    caches = {name: str(storage / folder) for name, folder in base.CACHES.items()}
    return {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(port), **(caches if capabilities.shared_storage else {})}


def service_environment(
    job: Job,
    scratch: Scratch,
    capabilities: Capabilities,
    gpus: Sequence[str],
    shared: Path,
    ports: Sequence[PortForward],
) -> dict[str, str]:
    """Build the variables of a job that reserved these GPUs and ports; its project's storage is `shared` on this host.

    In a container or sandbox it finds its folders where they are mounted; with a network of its own it listens on its
    own ports, not on the host's.
    """
    mounted = capabilities.mounts
    workspace = Path(base.WORKSPACE) if mounted else scratch.workspace
    artifacts = Path(base.ARTIFACTS) if mounted else scratch.artifacts
    storage = Path(base.STORAGE) if mounted else shared
    control = Path(base.CONTROL) if mounted else scratch.control
    return {
        "GRADIENT_JOB_ID": job.id,
        "GRADIENT_ATTEMPT": str(job.attempt),
        "GRADIENT_MACHINE_TYPE": job.machine_type,
        **_describe_commit(job.spec),
        **({"GRADIENT_GPUS": ",".join(gpus)} if gpus else {}),
        "GRADIENT_WORKSPACE_DIR": str(workspace),
        "GRADIENT_ARTIFACTS_DIR": str(artifacts),
        "GRADIENT_STORAGE_DIR": str(storage),
        "GRADIENT_METRICS_FILE": str(control / "metrics.jsonl"),
        **_describe_array(job),
        "GRADIENT_PARAMS": json.dumps(job.spec.params),
        "PS_JOB_ID": job.id,
        "PS_JOBSPACE": str(workspace),
        "PS_MODEL_PATH": str(artifacts),
        "PS_HOSTNAME": os.uname().nodename,
        "PYTHONUNBUFFERED": "1",
        **{
            f"GRADIENT_PORT_{port.internal}": str(port.internal if capabilities.own_network else port.external)
            for port in ports
        },
    }


def working_dir(spec: JobSpec, scratch: Scratch, capabilities: Capabilities) -> str | None:
    """Return the folder that the command starts in, as the job sees it; None if it is the workspace itself."""
    if spec.working_dir is None or not is_in_workspace(spec.working_dir):
        return spec.working_dir  # a folder of the container
    workspace = base.WORKSPACE if capabilities.mounts else scratch.workspace
    return str(Path(workspace, path_in_workspace(spec, scratch)))


def path_in_workspace(spec: JobSpec, scratch: Scratch) -> str:
    """Return the folder that the command starts in, relative to the workspace; `.` if it is a container's."""
    if spec.working_dir is None or not is_in_workspace(spec.working_dir):
        return "."
    within = str(PurePosixPath(base.WORKSPACE, spec.working_dir).relative_to(base.WORKSPACE))
    if not may_have_launched(scratch.control):  # once started, the job may remove the folder
        within = str(scratch.folder(within).relative_to(scratch.workspace.resolve()))
    return within
