"""Schemas of secrets and registries."""

from pydantic import Field

from service.schemas.base import RequestModel, Time, View


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
