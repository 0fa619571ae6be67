"""Receivers of notifications: webhooks and addresses of Apprise, saved by name, and the rules of what each is told."""

import base64
import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy import delete as delete_rows
from sqlalchemy import select, update
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.jobs import Project
from core.db.models.notifications import ALL, NotificationDelivery, NotificationRule, Receiver
from core.errors import CredentialNotFound, SpecInvalid
from core.jobs import projects
from core.jobs.guarded_updates import insert_ignore
from core.jobs.spec.notify import (
    DEFAULT_EVENTS,
    OF_KIND,
    OF_WORKERS,
    RECEIVER_NAME,
    check_events,
    matches,
    parse_notify,
)
from core.notifications.apprise_address import SCHEMES, check
from core.notifications.webhook import SECRET_PREFIX
from core.security.actor import record_change
from core.security.credentials import receiver_purpose
from core.security.encryption import Vault
from core.security.users import identity_of

MAX_URL = 2000
MAX_QUIET_SECONDS = 7 * 24 * 3600


def get(session: Session, name: str) -> Receiver:
    receiver = session.get(Receiver, name[:200])
    if receiver is None:
        raise CredentialNotFound(
            f"There is no receiver {name[:100]!r}. `gradient-cli notifications list` shows those that are saved."
        )
    return receiver


def put(
    session: Session, vault: Vault, key_id: str, name: str, settings: Mapping[str, Any]
) -> tuple[Receiver, bool, str | None]:
    """Save a receiver, in place of one with its name, and enable it.

    Returns its row, whether it is new, and the secret that signs its messages, which it keeps. `settings`: `url`,
    `events`, `quiet_seconds`, and `jobs`, whose events it gets besides those of jobs that name it: `mine`, `all` or
    `project:NAME`.
    """
    if not RECEIVER_NAME.match(name):
        raise SpecInvalid(
            f"{name[:80]!r} is not a name for a receiver. Use letters, digits and _ . -, at most 100, not starting "
            "with a digit.",
            field="name",
        )
    events = check_events(settings["events"], "events") or list(DEFAULT_EVENTS)
    of_workers = next((event for event in events if event in OF_WORKERS), None)
    if of_workers is not None and "all" not in settings["jobs"]:
        raise SpecInvalid(f"{of_workers} is of no job. Give the receiver the events of all jobs.", field="jobs")
    kind, address = _describe_url(settings["url"])
    receiver = session.get(Receiver, name, with_for_update=True)
    created, secret = receiver is None, None if receiver is None else unseal(vault, receiver)["secret"]
    if receiver is None:
        receiver = Receiver(id=name, submitted_by=key_id, created_at=now())
        session.add(receiver)
    secret = secret or SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    opened = {"url": settings["url"], "secret": secret if kind == "webhook" else None}
    receiver.kind, receiver.address, receiver.events = kind, address, events
    receiver.sealed = vault.encrypt(receiver_purpose(name), json.dumps(opened))
    receiver.quiet_seconds, receiver.quiet_until, receiver.disabled = settings["quiet_seconds"], None, None
    receiver.updated_at = now()
    record_change(session, "receiver_set", name)
    session.flush()
    held = NotificationDelivery.receiver == name, NotificationDelivery.state == "held"
    session.execute(update(NotificationDelivery).where(*held).values(next_at=now()))
    _replace_rules(session, receiver, settings["jobs"])
    session.refresh(receiver)
    return receiver, created, opened["secret"]


def _replace_rules(session: Session, receiver: Receiver, jobs: Sequence[str]) -> None:
    """Replace the rules that a receiver was saved with; those of jobs that name it stay."""
    subjects = {_subject(session, receiver.submitted_by, text): text.partition(":")[0] for text in jobs}
    saved = NotificationRule.receiver == receiver.id, NotificationRule.scope.is_not(None)
    session.execute(delete_rows(NotificationRule).where(*saved))
    session.add_all(
        NotificationRule(subject=subject, receiver=receiver.id, scope=scope) for subject, scope in subjects.items()
    )
    session.flush()


def _subject(session: Session, key_id: str, text: str) -> str:
    """Return whose events are meant."""
    scope, _, name = text.partition(":")
    if text in {"mine", "all"}:
        return ALL if text == "all" else identity_of(session, key_id)
    project_id = projects.find_id(session, name) if scope == "project" and name else None
    if project_id is None:
        raise SpecInvalid(
            f"{text[:100]!r} is neither mine, all, nor project:NAME with the name of a project.", field="jobs"
        )
    return project_id


def _describe_url(url: str) -> tuple[str, str]:
    """Return the kind of a receiver, and its address without what is secret in it. Names no part of a refused URL."""
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise SpecInvalid("Cannot be read as a URL: check its host and port.", field="url") from None
    if not url.isprintable() or " " in url or len(url) > MAX_URL:
        raise SpecInvalid(f"Give one URL of at most {MAX_URL:,} printable characters without spaces.", field="url")
    if parts.scheme in SCHEMES:
        check(url)
        return parts.scheme, f"{parts.scheme}://…"
    if parts.scheme not in {"http", "https"}:
        raise SpecInvalid(
            "Its scheme is not supported. Give the https or http URL of a webhook, or an address of Apprise: "
            f"{', '.join(SCHEMES)}.",
            field="url",
        )
    if not host or "@" in parts.netloc:
        raise SpecInvalid("Give a URL with a host, and without a user or a password before it.", field="url")
    return "webhook", f"{parts.scheme}://{parts.netloc}/…"[:300]


def unseal(vault: Vault, receiver: Receiver) -> dict[str, Any]:
    opened: dict[str, Any] = json.loads(vault.decrypt(receiver_purpose(receiver.id), receiver.sealed))
    return opened


def scopes_of(session: Session, name: str) -> list[str]:
    """Return whose events a receiver was saved to be told of, as `put` takes them."""
    saved = NotificationRule.receiver == name, NotificationRule.scope.is_not(None)
    rules = select(NotificationRule.scope, Project.name).where(*saved)
    rows = session.execute(rules.outerjoin(Project, Project.id == NotificationRule.subject))
    return sorted(f"{scope}:{project}" if project else str(scope) for scope, project in rows)


def delete(session: Session, name: str) -> None:
    get(session, name)
    for table in (NotificationRule, NotificationDelivery):
        session.execute(delete_rows(table).where(table.receiver == name))
    session.execute(delete_rows(Receiver).where(Receiver.id == name))
    record_change(session, "receiver_deleted", name)


def check_exist(session: Session, notify: Sequence[str]) -> dict[str, list[str] | None]:
    """Return the events by receiver that a job names; refuse it if one does not exist."""
    wanted = parse_notify(notify)
    for name in wanted:
        if session.get(Receiver, name) is None:
            raise SpecInvalid(
                f"There is no receiver {name!r}. Save it with `gradient-cli notifications create {name}`; "
                "`gradient-cli notifications list` shows those that are saved.",
                field="notify",
            )
    return wanted


def follow(session: Session, notify: Sequence[str], kind: str, subject: str) -> None:
    """Let the receivers that a new job, array, sweep or schedule names get its messages; a repeat is harmless.

    `kind`: which of these it is.
    """
    for name, events in check_exist(session, notify).items():
        if events is not None and not matches([event.partition("=")[0] for event in events], OF_KIND[kind]):
            raise SpecInvalid(
                f"{', '.join(events)} never comes of {'an' if kind == 'array' else 'a'} {kind}. Use "
                f"{', '.join(OF_KIND[kind])}.",
                field="notify",
            )
        rule = insert_ignore(session.get_bind().dialect.name, NotificationRule)
        session.execute(rule.values(subject=subject, receiver=name, events=events))
