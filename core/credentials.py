"""What only jobs may read: secrets by name, and how to sign in to registries. Values go in here, and out to jobs alone.

A job names a secret in its environment (`TOKEN=secret:NAME`); its specification, and with it the record, holds the
name. The value is looked up when an attempt is launched. A project's own secret goes before one of all projects.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core.credential_models import JobLogin, ProjectRegistry, Registry, Secret
from core.db import now
from core.errors import CredentialNotFound, SecretUnreadable, SpecInvalid
from core.image_registry import Login, checked_host, registry_of
from core.jobs.models import Job
from core.jobs.moves import insert_once
from core.jobs.spec import SECRET_NAME, JobSpec, check_label
from core.vault import Vault

AnyRegistry = Registry | ProjectRegistry

EVERY_PROJECT = ""
MAX_SECRET_BYTES = 64 * 1024
MAX_PASSWORD_BYTES = 16 * 1024
"""Tokens that some registries give for a password are kilobytes long."""
MAX_USERNAME = 255


def put_secret(session: Session, vault: Vault, project_id: str, name: str, value: str) -> tuple[Secret, bool]:
    """Store a value under a name, over the one that was there.

    Args:
        session: Writes.
        vault: Encrypts.
        project_id: Whose jobs may use it, or EVERY_PROJECT.
        name: What jobs call it.
        value: What they get.

    Returns:
        Its row, and whether it is new.

    Raises:
        SpecInvalid: The name or the value cannot be one.
        SecretUnreadable: There is no key to encrypt it with.
    """
    if not SECRET_NAME.match(name):
        raise SpecInvalid(
            f"{name[:80]!r} is not a name for a secret. Use letters, digits and _ . -, at most 100, not starting with "
            "a digit.",
            field="name",
        )
    _check_value(value, "value", MAX_SECRET_BYTES)
    key = {"project_id": project_id, "name": name}
    return _put(session, Secret, key, {"sealed": vault.seal(_secret_purpose(project_id, name), value)})


def secrets_of(session: Session, project_id: str) -> list[Secret]:
    """The secrets of one project, or of all projects together (EVERY_PROJECT), by name."""
    return list(session.scalars(select(Secret).where(Secret.project_id == project_id).order_by(Secret.name)))


def delete_secret(session: Session, project_id: str, name: str) -> None:
    """Forget a secret.

    Raises:
        CredentialNotFound: There is none.
    """
    gone = delete(Secret).where(Secret.project_id == project_id, Secret.name == name).returning(Secret.name)
    if session.scalar(gone) is None:
        raise CredentialNotFound(f"No such secret: {name[:100]!r}. `gradient-cli secrets list` shows them.")


def check_named(session: Session, spec: JobSpec, project_id: str | None) -> None:
    """Refuse a job that names a secret which is not there.

    Raises:
        SpecInvalid: It does; the field is the variable.
    """
    named = spec.secrets()
    if not named:
        return
    there = {secret.name for secret in _visible(session, set(named.values()), project_id)}
    for variable, name in named.items():
        if name not in there:
            where = "is stored for every project" if project_id is None else "is stored for its project or for all"
            raise SpecInvalid(
                f"No secret named {name!r} {where}. Store it with `gradient-cli secrets set {name}`; "
                "`gradient-cli secrets list` shows what there is.",
                field=f"envVars.{variable}",
            )


def with_values(session: Session, vault: Vault, job: Job) -> dict[str, str]:
    """The job's environment with the values of the secrets that it names.

    Raises:
        CredentialNotFound: A secret is gone.
        SecretUnreadable: One cannot be decrypted; the message names it.
    """
    env, named = job.spec.env_vars, job.spec.secrets()
    if not named:
        return env
    # Sorted by project: its own comes last and wins.
    found = {secret.name: secret for secret in _visible(session, set(named.values()), job.project_id)}
    values = {}
    for variable, name in named.items():
        if name not in found:
            raise CredentialNotFound(f"{variable} names the secret {name}, which is gone.")
        secret = found[name]
        try:
            values[variable] = vault.open(_secret_purpose(secret.project_id, name), secret.sealed)
        except SecretUnreadable as error:
            raise SecretUnreadable(f"secret {name}: {error.message}") from error
    return env | values


def put_registry(
    session: Session, vault: Vault, project_id: str, host: str, username: str, password: str, *, push: bool = False
) -> tuple[AnyRegistry, bool]:
    """Store how to sign in to a registry, over what was there.

    Args:
        session: Writes.
        vault: Encrypts.
        project_id: Whose jobs sign in with it, or EVERY_PROJECT.
        host: The registry.
        username: Who signs in.
        password: Or a token.
        push: Whether jobs may also push images with it.

    Returns:
        Its row, and whether it is new.

    Raises:
        SpecInvalid: Something cannot be.
        SecretUnreadable: There is no key to encrypt the password with.
    """
    known = checked_host(host)
    check_login(username, password, "username", "password")
    sealed = vault.seal(_registry_purpose(project_id, known), password)
    table, key = _registry_key(project_id, known)
    return _put(session, table, key, {"username": username, "sealed": sealed, "push": push})


def registries(session: Session, project_id: str) -> list[AnyRegistry]:
    """The registries that a project's jobs, or those of every project (EVERY_PROJECT), sign in to, by host."""
    table, key = _registry_key(project_id, "")
    del key["host"]
    return list(session.scalars(select(table).filter_by(**key).order_by(table.host)))


def delete_registry(session: Session, project_id: str, host: str) -> None:
    """Forget how to sign in to a registry.

    Raises:
        CredentialNotFound: It is not known.
        SpecInvalid: It is no host.
    """
    table, key = _registry_key(project_id, checked_host(host))
    gone = delete(table).filter_by(**key).returning(table.host)
    if session.scalar(gone) is None:
        raise CredentialNotFound(f"No such registry: {host[:100]!r}. `gradient-cli registries list` shows them.")


def keep_login(session: Session, vault: Vault, job_id: str, password: str) -> None:
    """Keep a password that came with a job, until the job has ended; a repeat changes nothing.

    Raises:
        SecretUnreadable: There is no key to encrypt it with.
    """
    kept = insert_once(session.get_bind().dialect.name, JobLogin)
    session.execute(kept.values(job_id=job_id, sealed=vault.seal(_job_purpose(job_id), password)))


def login_for(session: Session, vault: Vault, job: Job, image: str, *, push: bool = False) -> Login | None:
    """How to sign in to the registry of an image, for this job.

    With what came with it, else with what is stored for its project, else for every project.

    Args:
        session: Reads.
        vault: Decrypts.
        job: The job.
        image: Its image, or what it pushes.
        push: Whether it is to be pushed: then only with what may be used for that.

    Raises:
        SecretUnreadable: The password cannot be decrypted; the message names the registry.
    """
    host, username = registry_of(image), job.spec.registry_username
    try:
        if username is not None:
            sealed = session.scalar(select(JobLogin.sealed).where(JobLogin.job_id == job.id))
            return Login(host, username, vault.open(_job_purpose(job.id), sealed)) if sealed else None
        for project_id in (job.project_id, EVERY_PROJECT):
            table, key = _registry_key(project_id, host)
            known = session.get(table, key)
            if known is not None and (known.push or not push):
                return Login(host, known.username, vault.open(_registry_purpose(project_id, host), known.sealed))
    except SecretUnreadable as error:
        raise SecretUnreadable(f"password for {host}: {error.message}") from error
    return None


def check_login(username: str, password: str, name_field: str, password_field: str) -> None:
    """Refuse a username or password that cannot be one.

    Raises:
        SpecInvalid: With the field.
    """
    check_label(username, name_field, MAX_USERNAME)
    _check_value(password, password_field, MAX_PASSWORD_BYTES)


def seal_anew(session: Session, vault: Vault) -> tuple[int, list[str]]:
    """Encrypt everything with the first key.

    Returns:
        How many values were; and what could not be, with why.
    """

    def anew(row: Any, purpose: str) -> None:  # noqa: ANN401 - a row of any of the tables
        row.sealed = vault.sealed_anew(purpose, row.sealed)

    # Locked: what is set meanwhile must not be put back to what it was.
    done = _each(session, anew, lambda query: query.with_for_update())
    session.flush()
    return done


def readable(session: Session, vault: Vault) -> tuple[int, list[str]]:
    """How many values can be decrypted; and what cannot be, with why."""
    return _each(session, lambda row, purpose: vault.open(purpose, row.sealed))


def _each(
    session: Session, act: Callable[[Any, str], object], narrow: Callable[[Any], Any] = lambda query: query
) -> tuple[int, list[str]]:
    """Do something to every row with a sealed value; how many it could be done to, and what else there is, with why."""
    rows = [
        *((one, _secret_purpose(one.project_id, one.name)) for one in session.scalars(narrow(select(Secret)))),
        *((one, _registry_purpose("", one.host)) for one in session.scalars(narrow(select(Registry)))),
        *(
            (one, _registry_purpose(one.project_id, one.host))
            for one in session.scalars(narrow(select(ProjectRegistry)))
        ),
        *((one, _job_purpose(one.job_id)) for one in session.scalars(narrow(select(JobLogin)))),
    ]
    failed = []
    for row, purpose in rows:
        try:
            act(row, purpose)
        except SecretUnreadable as error:
            failed.append(f"{' '.join(purpose.split())}: {error.message}")
    return len(rows) - len(failed), failed


def _put(session: Session, table: type[Any], key: Mapping[str, str], values: Mapping[str, Any]) -> tuple[Any, bool]:
    first = insert_once(session.get_bind().dialect.name, table)
    made = session.scalars(
        first.values(**key, **values, created_at=now(), updated_at=now()).returning(table)
    ).one_or_none()
    if made is not None:
        return made, True
    here = [getattr(table, column) == value for column, value in key.items()]
    changed = update(table).where(*here).values(**values, updated_at=now()).returning(table)
    return session.scalars(changed, execution_options={"populate_existing": True}).one(), False


def _visible(session: Session, names: Iterable[str], project_id: str | None) -> list[Secret]:
    of = {EVERY_PROJECT, project_id or EVERY_PROJECT}
    query = select(Secret).where(Secret.name.in_(names), Secret.project_id.in_(of)).order_by(Secret.project_id)
    return list(session.scalars(query))


def _check_value(value: str, where: str, most: int) -> None:
    """What is wrong with it is said without any of it."""
    if not value:
        raise SpecInvalid("Empty; give it at least one character.", field=where)
    if "\0" in value:
        raise SpecInvalid("Holds a NUL character, which no environment takes.", field=where)
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise SpecInvalid("Holds half of a surrogate pair, which is not valid Unicode.", field=where) from None
    if size > most:
        raise SpecInvalid(f"{size:,} bytes, at most {most:,} are taken.", field=where)


def _secret_purpose(project_id: str, name: str) -> str:
    return f"secret {project_id} {name}"


def _registry_key(project_id: str, host: str) -> tuple[type[Any], dict[str, str]]:
    if project_id == EVERY_PROJECT:
        return Registry, {"host": host}
    return ProjectRegistry, {"project_id": project_id, "host": host}


def _registry_purpose(project_id: str, host: str) -> str:
    return f"registry {host}" if project_id == EVERY_PROJECT else f"registry {host} of project {project_id}"


def _job_purpose(job_id: str) -> str:
    return f"registry login of job {job_id}"
