"""Schemas of API keys."""

from typing import Literal

from pydantic import Field

from core.settings.retention import MAX_DAYS
from service.schemas.base import RequestModel, Time, View


class CreateKey(RequestModel):
    """An API key to create."""

    name: str = Field(description="its owner or use")
    days: int | None = Field(None, description=f"days until it expires, 1 to {MAX_DAYS:,}; null: never")


class KeyView(View):
    """An API key, without its secret part."""

    id: str = Field(description="the part of the key that is not secret")
    name: str
    state: Literal["valid", "revoked", "expired"]
    created_at: Time
    last_used_at: Time | None = Field(description="time of its last use, recorded once a minute; null: not used yet")
    expires_at: Time | None = Field(description="null: never")
    revoked_at: Time | None


class Keys(View):
    """API keys, oldest first."""

    keys: list[KeyView]


class CreatedKey(KeyView):
    """A new API key."""

    api_key: str = Field(description="the key itself, which is not stored and never returned again")
