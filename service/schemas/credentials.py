from typing import Literal, TypeAlias

from pydantic import Field

from core.jobs.costs.budgets import MAX_BUDGETS
from core.security.key_rights import MAX_NAMED
from core.settings.limits import MAX_DAYS
from service.schemas.base import LimitedList, RequestModel, Time, View
from service.schemas.projects import BUDGETS, BudgetView, Role

Scope: TypeAlias = Literal["read", "submit", "admin"]
_SCOPE = "read: see everything; submit: also submit, and change what is its own; admin: also what is others' and all's"


class SetSecret(RequestModel):
    """The value of a secret, for the jobs that name it."""

    value: str = Field(description="the value, up to 64 KiB; never returned", repr=False)


class SecretView(View):
    """A secret, without its value."""

    name: str
    project_id: str | None = Field(description="project whose jobs may use it; null: all projects")
    created_at: Time
    updated_at: Time


class Secrets(View):
    """Secrets, by name."""

    secrets: list[SecretView]


class SetRegistry(RequestModel):
    """The login for a registry."""

    username: str
    password: str = Field(description="password or token; never returned", repr=False)
    push: bool = Field(default=False, description="whether jobs may also push images that they build to this registry")


class RegistryView(View):
    """A registry with a stored login, without its password."""

    host: str
    project_id: str | None = Field(description="project whose jobs log in with it; null: all projects")
    username: str
    push: bool = Field(description="whether jobs may also push images that they build to this registry")
    created_at: Time
    updated_at: Time


class Registries(View):
    """Registries, by host."""

    registries: list[RegistryView]


class CreateKey(RequestModel):
    """An API key to create."""

    name: str = Field(description="who or what the key is for")
    days: int | None = Field(None, description=f"days until it expires, 1 to {MAX_DAYS:,}; null: never")
    scope: Scope = Field("submit", description=_SCOPE)
    projects: LimitedList[str] | None = Field(
        None, max_length=MAX_NAMED, description="names of the projects that it may see and submit to; null: all"
    )
    machine_types: LimitedList[str] | None = Field(
        None, max_length=MAX_NAMED, description="machine types that it may use; null: all"
    )
    max_jobs: int | None = Field(None, description="most unfinished jobs that it may have at once; null: no limit")
    agent: bool = Field(default=False, description="whether a program acts with it, not a person")
    budgets: LimitedList[str] = Field(default_factory=list, max_length=MAX_BUDGETS, description=BUDGETS)


class KeyView(View):
    """An API key, without its secret part."""

    id: str = Field(description="the part of the key that is not secret")
    name: str
    state: Literal["valid", "revoked", "expired"]
    created_at: Time
    last_used_at: Time | None = Field(description="time of its last use, recorded once a minute; null: not used yet")
    expires_at: Time | None = Field(description="null: never")
    revoked_at: Time | None
    last_address: str | None = Field(description="address of the client that used it last")
    scope: Scope = Field(description=_SCOPE)
    administrator: bool = Field(description="whether it is an administrator's: by its scope, or by the settings")
    projects: list[str] | None = Field(description="names of the projects that it may see and submit to; null: all")
    machine_types: list[str] | None = Field(description="machine types that it may use; null: all")
    max_jobs: int | None = Field(description="most unfinished jobs that it may have at once; null: no limit")
    agent: bool = Field(description="whether a program acts with it, not a person")
    budgets: list[BudgetView]
    roles: dict[str, Role] = Field(default_factory=dict, description="of the own key: its roles by name of the project")


class Keys(View):
    """API keys, oldest first."""

    keys: list[KeyView]


class CreatedKey(KeyView):
    """A new API key."""

    api_key: str = Field(description="the key itself, which is not stored and is returned only once")


class AddSshKeys(RequestModel):
    """Public keys of ssh, to act with the caller's API key."""

    public_keys: LimitedList[str] = Field(min_length=1, max_length=50, description="lines of .pub files")
    replace: bool = Field(default=False, description="whether other ssh keys of the API key are removed")


class SshAccess(View):
    """The ssh endpoint."""

    host: str
    port: int
    host_key: str = Field(description="its public key, as in a .pub file")
