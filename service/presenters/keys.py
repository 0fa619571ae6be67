from sqlalchemy.orm import Session

from core.db.models.credentials import ApiKey
from core.security import api_keys
from service.app_state import AppState
from service.auth.authentication import Principal, is_administrator
from service.schemas.credentials import CreatedKey, CreateKey, Keys, KeyView


def keys_view(session: Session, app_state: AppState, caller: Principal) -> Keys:
    """Return all API keys for an administrator, and the caller's own for everybody else."""
    shown = api_keys.list_keys(session)
    if not is_administrator(app_state, caller.id):
        shown = [key for key in shown if key.id == caller.id]
    return Keys(keys=[_key_view(key) for key in shown])


def make_key(session: Session, wanted: CreateKey) -> CreatedKey:
    key, secret = api_keys.create(session, wanted.name, days=wanted.days)
    return CreatedKey(**_key_view(key).model_dump(), api_key=secret)


def _key_view(key: ApiKey) -> KeyView:
    return KeyView.model_validate(
        {
            "id": key.id,
            "name": key.name,
            "state": api_keys.state(key),
            "created_at": key.created_at,
            "last_used_at": key.last_used_at,
            "expires_at": key.expires_at,
            "revoked_at": key.revoked_at,
        }
    )
