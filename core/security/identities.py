"""Users who sign in with an OpenID provider: made at their first sign-in, with the rights that their groups have."""

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Self

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from core.db.database import now
from core.db.models.credentials import ApiKey, BrowserSession, Identity, User, UserKey
from core.db.models.jobs import Project
from core.db.turns import take_turn
from core.errors import Unauthorized
from core.security import api_keys, members, users
from core.security.actor import Actor, act_as, acting_address, record_change
from core.security.credentials import tokens_purpose
from core.security.encryption import Vault
from core.security.key_rights import KeyRights
from core.settings.api import OidcSettings

_MOST_CHECKED = 20  # identities of one round


class Account(NamedTuple):
    """The statements of a provider about somebody, with its tokens."""

    issuer: str
    subject: str
    email: str
    groups: frozenset[str]
    token: Mapping[str, Any]

    @classmethod
    def of(cls, settings: OidcSettings, claims: Mapping[str, Any], token: Mapping[str, Any]) -> Self:
        """Read an account from its claims. Raises `Unauthorized`: it may not sign in here."""
        email = claims.get("email")
        if not isinstance(email, str) or claims.get("email_verified") is False:
            raise Unauthorized("The provider gave no verified e-mail address for you. Ask its administrator for one.")
        domains = {domain.casefold() for domain in settings.email_domains}
        if domains and email.rpartition("@")[2].casefold() not in domains:
            raise Unauthorized(f"Addresses like {email[:200]} may not sign in here. Use one of {', '.join(domains)}.")
        groups = claims.get(settings.groups_claim) or ()
        named = [groups] if isinstance(groups, str) else groups
        return cls(str(settings.issuer), str(claims["sub"]), email, frozenset(map(str, named)), token)


def sign_in(session: Session, vault: Vault, settings: OidcSettings, account: Account) -> str:
    """Make or update the user of an account; returns the id of the key for the user's browser sessions."""
    named = Identity.issuer == account.issuer, Identity.subject == account.subject
    take_turn(session, "sign-ins")  # two first ones of a person would make two users
    identity = session.scalar(select(Identity).where(*named).with_for_update())
    if identity is None:
        if session.scalar(select(User.id).where(User.email == users.normalize_email(account.email))):
            raise Unauthorized(
                f"Another user here has the address {account.email}. An administrator can remove that user: "
                f"`gradient-server users delete {account.email}`."
            )
        user = users.create(session, account.email, None)
        key, _ = users.create_key_for(session, user.id, user.email)
        identity = Identity(user_id=user.id, issuer=account.issuer, subject=account.subject, key_id=key.id)
        identity.checked_at = session.scalars(select(now())).one()
        session.add(identity)
    elif api_keys.state(api_keys.get(session, identity.key_id)) != "valid":
        identity.key_id = users.create_key_for(session, identity.user_id, account.email)[0].id
    act_as(Actor(identity.key_id, acting_address()))
    update_rights(session, vault, settings, identity, account)
    record_change(session, "signed_in", account.email)
    return identity.key_id


def update_rights(session: Session, vault: Vault, settings: OidcSettings, identity: Identity, account: Account) -> None:
    """Give a user's keys what the groups of the account have, and store the provider's new tokens."""
    identity.sealed = vault.encrypt(tokens_purpose(identity.user_id), json.dumps(dict(account.token)))
    address, user = users.normalize_email(account.email), session.get_one(User, identity.user_id)
    if address != user.email and not session.scalar(select(User.id).where(User.email == address)):
        record_change(session, "user_renamed", f"{user.email}: {address}")
        user.email = address
    scope = "admin" if account.groups & {*settings.administrators} else "submit"
    for key in _keys_of(session, user.id):
        rights = KeyRights.of(key.rights)
        if rights.scope != scope:
            key.rights = replace(rights, scope=scope).stored()
            record_change(session, "key_scope_set", f"{key.id} ({key.name}): {scope}")
    of_groups = [settings.roles.get(group, {}) for group in account.groups]
    names = {name for by_project in settings.roles.values() for name in by_project}
    for project in session.scalars(select(Project).where(Project.name.in_(names))):
        roles = [by_project[project.name] for by_project in of_groups if project.name in by_project]
        members.set_role(session, project, user, max(roles, key=members.ROLES.index, default=None))


def forget(session: Session, identity: Identity, *, revoke: bool) -> None:
    """End the sessions of a user for whom the provider no longer vouches; `revoke`: and the keys of all sign-ins."""
    session.execute(update(Identity).where(Identity.user_id == identity.user_id).values(sealed=None))
    session.execute(delete(BrowserSession).where(BrowserSession.key_id == identity.key_id))
    record_change(session, "sign_in_ended", session.get_one(User, identity.user_id).email)
    for key in _keys_of(session, identity.user_id) if revoke else ():
        if key.id != identity.key_id:
            api_keys.revoke(session, key.id)


def take_due(session: Session, seconds: float) -> list[Identity]:
    """Return identities that were not checked for so long, and take it that this process checks them now."""
    due = Identity.sealed.is_not(None), Identity.checked_at <= now(-seconds)
    ids = select(Identity.user_id).where(*due).limit(_MOST_CHECKED)
    taken = update(Identity).where(Identity.user_id.in_(ids), *due).values(checked_at=now()).returning(Identity)
    return list(session.scalars(taken))


def token_of(vault: Vault, identity: Identity) -> dict[str, Any]:
    return dict(json.loads(vault.decrypt(tokens_purpose(identity.user_id), identity.sealed or "")))


def is_expired(token: Mapping[str, Any]) -> bool:
    """Return whether a token can tell nothing more: it is past its time, and there is none to refresh it."""
    return not token.get("refresh_token") and float(token.get("expires_at") or 0) <= time.time()


def of_key(session: Session, key_id: str) -> Identity | None:
    """Return the identity whose browser sessions have this key."""
    return session.scalar(select(Identity).where(Identity.key_id == key_id))


def _keys_of(session: Session, user_id: str) -> list[ApiKey]:
    of_user = select(UserKey.key_id).where(UserKey.user_id == user_id)
    return list(session.scalars(select(ApiKey).where(ApiKey.id.in_(of_user), ApiKey.revoked_at.is_(None))))
