"""Schemas of secrets and registries."""

from pydantic import Field

from service.schemas.base import View
from service.schemas.jobs import RequestModel, Time


class SetSecret(RequestModel):
    """The value of a secret, for the jobs that name it."""

    value: str = Field(description="up to 64 KiB; never shown again", repr=False)


class SecretView(View):
    """A secret, without its value."""

    name: str
    project_id: str | None = Field(description="whose jobs may use it; null: every project's")
    created_at: Time
    updated_at: Time


class Secrets(View):
    """Secrets, by name."""

    secrets: list[SecretView]


class SetRegistry(RequestModel):
    """The login for a registry."""

    username: str
    password: str = Field(description="or a token; never shown again", repr=False)
    push: bool = Field(default=False, description="whether jobs may also push the images they build with it")


class RegistryView(View):
    """A registry that jobs' images may come from, without its password."""

    host: str
    project_id: str | None = Field(description="whose jobs sign in with it; null: every project's")
    username: str
    push: bool = Field(description="whether jobs may also push the images they build with it")
    created_at: Time
    updated_at: Time


class Registries(View):
    """Registries, by host."""

    registries: list[RegistryView]
