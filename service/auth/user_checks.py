"""Checks, at the OpenID provider, of the accounts and groups of users who have signed in with it."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial

from core.db.database import on_commit
from core.db.models.credentials import Identity
from core.errors import SecretUnreadable, StoreUnavailable, Unauthorized
from core.security import identities
from core.security.encryption import Vault
from service.app_state import AppState


def check_due(app_state: AppState) -> int:
    """Ask the provider about users who were not checked for long; returns how many there were."""
    with app_state.database.write() as session:
        due = identities.take_due(session, app_state.settings.oidc.check_seconds)
    for identity in due:
        with suppress(StoreUnavailable):  # it is logged; their rights stay as they are until the provider answers
            _check(app_state, identity)
    return len(due)


def _check(app_state: AppState, identity: Identity) -> None:
    vault, settings = Vault(app_state.settings), app_state.settings.oidc
    change: Callable[..., None]
    try:
        token = identities.token_of(vault, identity)
        change = partial(identities.forget, revoke=not identities.is_expired(token))
        if identity.issuer == settings.issuer and not identities.is_expired(token):
            account = app_state.provider.check(token)
            if account.subject == identity.subject:
                change = partial(identities.update_rights, vault=vault, settings=settings, account=account)
    except Unauthorized:
        pass
    except SecretUnreadable:
        change = partial(identities.forget, revoke=False)
    with app_state.database.write() as session:
        change(session, identity=session.get_one(Identity, identity.user_id))
        on_commit(session, app_state.keys.clear)
        on_commit(session, app_state.sessions.clear)
