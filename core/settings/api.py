from ipaddress import ip_network
from typing import ClassVar, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator

from core.formatting import GIB
from core.settings.group import PublicUrl, SettingsGroup
from core.settings.limits import MAX_DAYS

MAX_PROCESSES = 64


class ApiSettings(SettingsGroup):
    shared: ClassVar = ("max_connections", "max_connections_per_client")
    host: str = Field(default="127.0.0.1", description="address that the API listens on")
    port: int = Field(default=8780, ge=0, le=65535, description="port that the API listens on")
    processes: int = Field(
        default=1,
        ge=1,
        le=MAX_PROCESSES,
        description="API processes, which share the port and the limits; use one per CPU that requests may occupy",
    )
    public_url: PublicUrl | None = Field(
        default=None, description="URL at which users reach the service; default: http://HOST:PORT"
    )
    max_upload_bytes: int = Field(default=10 * GIB, description="bytes of the largest workspace, as sent and unpacked")
    max_connections: int = Field(
        default=1024,
        ge=1,
        description="most connections at once; at the limit, a new one replaces the one that has been idle longest",
    )
    max_connections_per_client: int = Field(
        default=512, ge=1, description="most connections at once from one address; trusted proxies are exempt"
    )
    trusted_proxies: list[str] = Field(
        default=[],
        description="addresses or networks (CIDR) of proxies whose X-Forwarded-For and X-Forwarded-Proto are "
        "trusted, as a JSON list",
    )
    insecure_http: bool = Field(
        default=False,
        description="allow listening on an address other than loopback although GRADIENT_API__PUBLIC_URL is not "
        "https; keys and passwords then cross the network unencrypted",
    )

    @field_validator("trusted_proxies")
    @classmethod
    def _are_networks(cls, proxies: list[str]) -> list[str]:
        for network in proxies:
            ip_network(network)  # raises a ValueError that says what is wrong
        return proxies


class OidcSettings(SettingsGroup):
    """Sign-in with an OpenID provider; its application has the redirect URI PUBLIC_URL/ui/login/callback."""

    issuer: str | None = Field(
        default=None,
        description="URL of the OpenID provider, as in its metadata at ISSUER/.well-known/openid-configuration; "
        "default: no sign-in with one",
        pattern=r"^https?://\S+$",
    )
    client_id: str = Field(default="", description="id of the service's application at the provider")
    client_secret: SecretStr = Field(default=SecretStr(""), description="secret of the application")
    name: str = Field(default="your organisation", description="name of the provider on the sign-in page")
    scopes: list[str] = Field(
        default=["openid", "email", "profile"],
        description="scopes to request, as a JSON list; with offline_access, if the provider offers it",
    )
    email_domains: list[str] = Field(
        default=[], description="domains of the e-mail addresses that may sign in, as a JSON list; empty: all"
    )
    groups_claim: str = Field(default="groups", description="name of the claim that lists the groups of a user")
    administrators: list[str] = Field(default=[], description="groups whose members are administrators, as a JSON list")
    roles: dict[str, dict[str, Literal["viewer", "submitter", "maintainer"]]] = Field(
        default={},
        description='roles of groups in projects, as a JSON object: {"GROUP": {"PROJECT": "viewer"}}; or submitter, or '
        "maintainer",
    )
    check_seconds: float = Field(
        default=300.0, ge=1, description="seconds between checks of a user's groups and account at the provider"
    )

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        if self.issuer is not None and not self.client_id:
            raise ValueError("CLIENT_ID is missing: the id of the service's application at the provider.")
        return self


class SignInSettings(SettingsGroup):
    """Browser sessions, and API keys issued at login."""

    session_days: float = Field(
        default=30.0, gt=0, le=MAX_DAYS, description="days after which a browser session ends, even if it is in use"
    )
    administrators: list[str] = Field(
        default=[],
        description="ids of the administrators' API keys, as a JSON list: they may create keys, revoke other users' "
        "keys, and change all jobs, projects and shared objects; the key in cli.json on the API's machine is always "
        "one of them",
    )
    shared_jobs: bool = Field(
        default=False,
        description="let every key, not only owners and administrators, change all jobs, projects and shared objects",
    )
    key_days: float = Field(
        default=90.0,
        ge=0,
        le=MAX_DAYS,
        description="days that an API key issued at login is valid; 0: until it is revoked",
    )
