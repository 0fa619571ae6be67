"""Settings of the API process: HTTP, login, limits, metrics."""

from ipaddress import ip_network

from pydantic import Field, field_validator

from core.formatting import GIB
from core.settings.group import SettingsGroup
from core.settings.retention import MAX_DAYS


class ApiSettings(SettingsGroup):
    """The HTTP process."""

    host: str = Field(default="127.0.0.1", description="address that the API listens on")
    port: int = Field(default=8780, description="port that the API listens on")
    public_url: str | None = Field(
        default=None, description="URL at which users reach the service; default: http://HOST:PORT"
    )
    max_upload_bytes: int = Field(default=10 * GIB, description="bytes of the largest workspace upload, as sent")
    max_unpacked_bytes: int = Field(default=10 * GIB, description="bytes of the largest workspace, unpacked")
    max_body_bytes: int = Field(default=1024**2, description="bytes of the largest JSON body")
    max_connections: int = Field(
        default=1024,
        ge=1,
        description="most connections at once; at the limit, a new one replaces the one that has been idle longest",
    )
    max_connections_per_client: int = Field(
        default=512, ge=1, description="most connections at once from one address; trusted proxies are exempt"
    )
    header_seconds: float = Field(
        default=20.0, gt=0, description="seconds within which a client must send the headers of a request"
    )
    idle_seconds: int = Field(
        default=5, ge=1, description="seconds that an idle connection is kept open for another request"
    )
    body_seconds: float = Field(
        default=30.0, gt=0, description="seconds within which a request body must deliver another 16 KiB, or end"
    )
    send_seconds: float = Field(
        default=300.0,
        gt=0,
        description="seconds that a client may read nothing of a response before its connection is closed",
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
        for one in proxies:
            ip_network(one)  # raises a ValueError that says what is wrong
        return proxies


class SignInSettings(SettingsGroup):
    """Browser sessions, and API keys issued at login."""

    session_days: float = Field(
        default=30.0, gt=0, le=MAX_DAYS, description="days after which a browser session ends, even if it is in use"
    )
    session_idle_days: float = Field(
        default=7.0, gt=0, le=MAX_DAYS, description="days without a request after which a browser session ends"
    )
    key_days: float = Field(
        default=90.0,
        ge=0,
        le=MAX_DAYS,
        description="days that an API key issued at login is valid; 0: until it is revoked",
    )


class LimitSettings(SettingsGroup):
    """Limits per API key. A request over a limit gets 429 with a Retry-After."""

    requests_per_minute: int = Field(
        default=12_000, ge=0, description="requests per minute of one API key, counted by each API process; 0: no limit"
    )
    submissions_per_minute: int = Field(
        default=3000,
        ge=0,
        description="submissions, dry runs and clones per minute of one API key, counted by each API process; 0: no "
        "limit",
    )
    queued_per_key: int = Field(default=20_000, ge=0, description="queued jobs of one API key; 0: no limit")
    queued_per_project: int = Field(default=50_000, ge=0, description="queued jobs of one project; 0: no limit")
    priority: int = Field(default=100, ge=0, le=100, description="highest priority that a submission may request")
    streams: int = Field(
        default=100,
        ge=0,
        description="logs that one API key may follow at once, counted by each API process; 0: no limit",
    )
    searches: int = Field(
        default=4,
        ge=0,
        description="searches, metric lists and artifact deletions that run at once for one API key, counted by each "
        "API process; others wait; 0: no limit",
    )
    uploads: int = Field(
        default=4,
        ge=0,
        description="submissions with an archive that are checked at once for one API key, counted by each API "
        "process; others wait; 0: no limit",
    )
    archives: int = Field(
        default=4,
        ge=1,
        description="archives that one API process checks at once, for all API keys together; others wait",
    )
    wait_seconds: float = Field(
        default=20.0, ge=0, description="seconds that a request waits for its turn before it is rejected"
    )
    patterns: int = Field(default=100, ge=1, description="most file name patterns in one request of an original client")
    ids: int = Field(default=1000, ge=1, description="most ids or tags in one request of an original client")


class MetricSettings(SettingsGroup):
    """Limits of job metrics."""

    names: int = Field(
        default=200, ge=1, description="metric names stored per job; values under further names are dropped"
    )
    values: int = Field(
        default=1_000_000,
        ge=1000,
        description="metric values stored per job; the more a job has sent, the fewer of its lines are stored",
    )
    read_values: int = Field(
        default=200_000,
        ge=1000,
        description="metric values that one request reads; longer series are sampled at even intervals",
    )
