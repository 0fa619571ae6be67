"""Secrets and logins for registries and git servers. Values are write-only: only jobs get them back.

A job names a secret in its environment (`TOKEN=secret:NAME`); its specification, and so the database row, holds only
the name. The value is looked up when an attempt is launched. A project's own secret overrides one for all projects.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core.catalogue.registry_hosts import RegistryCredentials, parse_host, registry_host
from core.db.database import now
from core.db.models.credentials import GitLogin, Identity, JobRegistryPassword, Registry, Secret
from core.db.models.jobs import Job
from core.db.models.notifications import Receiver
from core.db.models.schedules import Schedule
from core.db.models.sweeps import Sweep
from core.errors import CredentialNotFound, SecretUnreadable, SpecInvalid
from core.jobs.guarded_updates import add_event, insert_ignore
from core.jobs.spec.job_spec import SECRET_NAME, JobSpec
from core.jobs.spec.labels import check_label
from core.security.actor import SECRETS_USED, record_change
from core.security.encryption import Vault

ALL_PROJECTS = ""
MAX_SECRET_BYTES = 64 * 1024
MAX_PASSWORD_BYTES = 16 * 1024  # some registries issue tokens of several kilobytes as passwords
MAX_USERNAME = 255


def put_secret(session: Session, vault: Vault, project_id: str, name: str, value: str) -> tuple[Secret, bool]:
    """Store a secret, replacing an existing one of that name. Returns its row, and whether it is new."""
    if not SECRET_NAME.match(name):
        raise SpecInvalid(
            f"{name[:80]!r} is not a name for a secret. Use letters, digits and _ . -, at most 100, not starting with "
            "a digit.",
            field="name",
        )
    _check_value(value, "value", MAX_SECRET_BYTES)
    key = {"project_id": project_id, "name": name}
    record_change(session, "secret_set", _described(project_id, name))
    return _put(session, Secret, key, {"sealed": vault.encrypt(_secret_purpose(project_id, name), value)})


def secrets_of(session: Session, project_id: str) -> list[Secret]:
    """Return the secrets of one project, or those for all projects (ALL_PROJECTS), ordered by name."""
    return list(session.scalars(select(Secret).where(Secret.project_id == project_id).order_by(Secret.name)))


def delete_secret(session: Session, project_id: str, name: str) -> None:
    gone = delete(Secret).where(Secret.project_id == project_id, Secret.name == name).returning(Secret.name)
    if session.scalar(gone) is None:
        raise CredentialNotFound(f"No such secret: {name[:100]!r}. `gradient-cli secrets list` shows them.")
    record_change(session, "secret_deleted", _described(project_id, name))


def check_secrets_exist(session: Session, spec: JobSpec, project_id: str | None) -> None:
    named = spec.secrets()
    if not named:
        return
    there = {secret.name for secret in _secrets_for_project(session, set(named.values()), project_id)}
    for variable, name in named.items():
        if name not in there:
            where = (
                "is stored for all projects"
                if project_id is None
                else "is stored for the job's project or for all projects"
            )
            raise SpecInvalid(
                f"No secret named {name!r} {where}. Store it with `gradient-cli secrets set {name}`; `gradient-cli "
                "secrets list` lists the stored secrets.",
                field=f"envVars.{variable}",
            )


def resolve_env(session: Session, vault: Vault, job: Job) -> dict[str, str]:
    """Return a job's environment with the values of the secrets that it names, and record their use with the job."""
    env, named = job.spec.env_vars, job.spec.secrets()
    if not named:
        return env
    # Sorted by project ID: the project's own secret comes after the one for all projects, and wins.
    secrets = {secret.name: secret for secret in _secrets_for_project(session, set(named.values()), job.project_id)}
    values = {}
    for variable, name in named.items():
        if name not in secrets:
            raise CredentialNotFound(f"{variable} names the secret {name}, which does not exist.")
        secret = secrets[name]
        try:
            values[variable] = vault.decrypt(_secret_purpose(secret.project_id, name), secret.sealed)
        except SecretUnreadable as error:
            raise SecretUnreadable(f"secret {name}: {error.message}") from error
    used = ", ".join(_described(secret.project_id, name) for name, secret in sorted(secrets.items()))
    add_event(session, job, SECRETS_USED, detail=used, actor=job.submitted_by)
    return env | values


def put_registry(
    session: Session, vault: Vault, project_id: str, host: str, username: str, password: str, *, push: bool = False
) -> tuple[Registry, bool]:
    """Store the login for a registry, replacing an existing one. Returns its row, and whether it is new."""
    registry_host = parse_host(host)
    check_login(username, password, "username", "password")
    sealed = vault.encrypt(_registry_purpose(project_id, registry_host), password)
    key = {"project_id": project_id, "host": registry_host}
    record_change(session, "registry_set", _described(project_id, registry_host))
    return _put(session, Registry, key, {"username": username, "sealed": sealed, "push": push})


def registries(session: Session, project_id: str) -> list[Registry]:
    """Return the registry logins for a project's jobs, or those for all projects (ALL_PROJECTS), ordered by host."""
    return list(session.scalars(select(Registry).where(Registry.project_id == project_id).order_by(Registry.host)))


def delete_registry(session: Session, project_id: str, host: str) -> None:
    registry_host = parse_host(host)
    gone = (
        delete(Registry)
        .where(Registry.project_id == project_id, Registry.host == registry_host)
        .returning(Registry.host)
    )
    if session.scalar(gone) is None:
        raise CredentialNotFound(f"No such registry: {host[:100]!r}. `gradient-cli registries list` shows them.")
    record_change(session, "registry_deleted", _described(project_id, host))


def save_job_login(session: Session, vault: Vault, job_id: str, password: str) -> None:
    """Store the registry password of a job until the job has ended; a repeat changes nothing."""
    kept = insert_ignore(session.get_bind().dialect.name, JobRegistryPassword)
    session.execute(kept.values(job_id=job_id, sealed=vault.encrypt(_job_purpose(job_id), password)))


def registry_login_for(
    session: Session, vault: Vault, job: Job, image: str, *, push: bool = False
) -> RegistryCredentials | None:
    """Return the login for the registry of an image, for this job.

    The login submitted with the job comes first, then that of its project, then that for all projects. `push`: whether
    the image is to be pushed: then only a login that may push is returned.
    """
    host, username = registry_host(image), job.spec.registry_username
    try:
        if username is not None:
            sealed = session.scalar(select(JobRegistryPassword.sealed).where(JobRegistryPassword.job_id == job.id))
            return RegistryCredentials(host, username, vault.decrypt(_job_purpose(job.id), sealed)) if sealed else None
        for project_id in (job.project_id, ALL_PROJECTS):
            login = session.get(Registry, (project_id, host))
            if login is not None and (login.push or not push):
                return RegistryCredentials(
                    host, login.username, vault.decrypt(_registry_purpose(project_id, host), login.sealed)
                )
    except SecretUnreadable as error:
        raise SecretUnreadable(f"password for {host}: {error.message}") from error
    return None


def save_git_login(session: Session, vault: Vault, job_id: str, login: str) -> None:
    """Store the `user:password` from the git address of a job's workspace; a repeat changes nothing."""
    kept = insert_ignore(session.get_bind().dialect.name, GitLogin)
    session.execute(kept.values(job_id=job_id, sealed=vault.encrypt(_git_purpose(job_id), login)))


def git_login(session: Session, vault: Vault, job: Job) -> str | None:
    """Return the `user:password` for the git server of a job's workspace; None if there is none."""
    sealed = session.scalar(select(GitLogin.sealed).where(GitLogin.job_id == job.id))
    if sealed is None:
        return None
    try:
        return vault.decrypt(_git_purpose(job.id), sealed)
    except SecretUnreadable as error:
        raise SecretUnreadable(f"password for the git server: {error.message}") from error


def seal_template_login(vault: Vault, template_id: str, login: str) -> str:
    """Encrypt the `user:password` from the git address of a schedule's or a sweep's workspace."""
    return vault.encrypt(_git_purpose(template_id), login)


def template_login(vault: Vault, template: Schedule | Sweep) -> str | None:
    return None if template.sealed is None else vault.decrypt(_git_purpose(template.id), template.sealed)


def check_login(username: str, password: str, name_field: str, password_field: str) -> None:
    check_label(username, name_field, MAX_USERNAME)
    _check_value(password, password_field, MAX_PASSWORD_BYTES)


def reencrypt_all(session: Session, vault: Vault) -> tuple[int, list[str]]:
    """Encrypt everything with the first key.

    Returns number of values encrypted; and those that could not be, with the reasons.
    """

    def reencrypt(row: Any, purpose: str) -> None:  # noqa: ANN401 - a row of any of the tables
        row.sealed = vault.reencrypt(purpose, row.sealed)

    # Locked: a value that is set meanwhile must not be overwritten with the old one.
    done = _for_each_encrypted(session, reencrypt, lambda query: query.with_for_update())
    session.flush()
    return done


def check_decryptable(session: Session, vault: Vault) -> tuple[int, list[str]]:
    """Count the values that can be decrypted; also returns those that cannot, with the reasons."""
    return _for_each_encrypted(session, lambda row, purpose: vault.decrypt(purpose, row.sealed))


def _for_each_encrypted(
    session: Session, act: Callable[[Any, str], object], narrow: Callable[[Any], Any] = lambda query: query
) -> tuple[int, list[str]]:
    """Call `act` on every row with an encrypted value; returns the number of successes, and failures with reasons."""
    rows = [
        *((row, _secret_purpose(row.project_id, row.name)) for row in session.scalars(narrow(select(Secret)))),
        *((row, _registry_purpose(row.project_id, row.host)) for row in session.scalars(narrow(select(Registry)))),
        *((row, receiver_purpose(row.id)) for row in session.scalars(narrow(select(Receiver)))),
        *((row, _job_purpose(row.job_id)) for row in session.scalars(narrow(select(JobRegistryPassword)))),
        *((row, _git_purpose(row.job_id)) for row in session.scalars(narrow(select(GitLogin)))),
        *(
            (row, tokens_purpose(row.user_id))
            for row in session.scalars(narrow(select(Identity).where(Identity.sealed.is_not(None))))
        ),
        *(
            (row, _git_purpose(row.id))
            for table in (Schedule, Sweep)
            for row in session.scalars(narrow(select(table).where(table.sealed != "")))
        ),
    ]
    failed = []
    for row, purpose in rows:
        try:
            act(row, purpose)
        except SecretUnreadable as error:
            failed.append(f"{' '.join(purpose.split())}: {error.message}")
    return len(rows) - len(failed), failed


def _put(session: Session, table: type[Any], key: Mapping[str, str], values: Mapping[str, Any]) -> tuple[Any, bool]:
    first = insert_ignore(session.get_bind().dialect.name, table)
    made = session.scalars(
        first.values(**key, **values, created_at=now(), updated_at=now()).returning(table)
    ).one_or_none()
    if made is not None:
        return made, True
    here = [getattr(table, column) == value for column, value in key.items()]
    changed = update(table).where(*here).values(**values, updated_at=now()).returning(table)
    return session.scalars(changed, execution_options={"populate_existing": True}).one(), False


def _secrets_for_project(session: Session, names: Iterable[str], project_id: str | None) -> list[Secret]:
    of = {ALL_PROJECTS, project_id or ALL_PROJECTS}
    query = select(Secret).where(Secret.name.in_(names), Secret.project_id.in_(of)).order_by(Secret.project_id)
    return list(session.scalars(query))


def _check_value(value: str, where: str, most: int) -> None:
    """Refuse an invalid value; the message must not contain any part of it."""
    if not value:
        raise SpecInvalid("Empty; give it at least one character.", field=where)
    if "\0" in value:
        raise SpecInvalid("Contains a NUL character, which no environment variable can hold.", field=where)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise SpecInvalid("Contains half of a surrogate pair, which is not valid Unicode.", field=where) from None
    if size > most:
        raise SpecInvalid(f"{size:,} bytes; at most {most:,} are allowed.", field=where)


def _described(project_id: str, name: str) -> str:
    return f"{name} of project {project_id}" if project_id else f"{name} of all projects"


def _secret_purpose(project_id: str, name: str) -> str:
    return f"secret {project_id} {name}"


def _registry_purpose(project_id: str, host: str) -> str:
    return f"registry {host}" if project_id == ALL_PROJECTS else f"registry {host} of project {project_id}"


def receiver_purpose(name: str) -> str:
    return f"notification receiver {name}"


def tokens_purpose(user_id: str) -> str:
    return f"sign-in tokens of user {user_id}"


def _job_purpose(job_id: str) -> str:
    return f"registry login of job {job_id}"


def _git_purpose(job_id: str) -> str:
    return f"git login of job {job_id}"
