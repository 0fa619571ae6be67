"""Settings of the API process: HTTP, login, limits, metrics."""

from ipaddress import ip_network

from pydantic import Field, field_validator

from core.formatting import GIB
from core.settings.group import SettingsGroup
from core.settings.retention import MAX_DAYS


class ApiSettings(SettingsGroup):
    """The HTTP process."""

    host: str = Field(default="127.0.0.1", description="address to listen on")
    port: int = Field(default=8780, description="port to listen on")
    public_url: str | None = Field(default=None, description="URL that users reach the service at, if not host:port")
    max_upload_bytes: int = Field(default=10 * GIB, description="largest workspace upload, bytes as sent")
    max_unpacked_bytes: int = Field(default=10 * GIB, description="largest workspace, bytes unpacked")
    max_body_bytes: int = Field(default=1024**2, description="largest JSON body, bytes")
    max_connections: int = Field(
        default=1024,
        ge=1,
        description="most connections at once; a new one takes the place of the one longest without a request",
    )
    max_connections_per_client: int = Field(
        default=512, ge=1, description="most connections at once from one address, but those of trusted proxies"
    )
    header_seconds: float = Field(default=20.0, gt=0, description="seconds that the head of a request may take")
    idle_seconds: int = Field(default=5, ge=1, description="seconds that a connection is kept for a next request")
    body_seconds: float = Field(
        default=30.0, gt=0, description="seconds in which a body has to bring 16 KiB more, or its end"
    )
    send_seconds: float = Field(
        default=300.0, gt=0, description="seconds that a client may read nothing of an answer before it is cut off"
    )
    trusted_proxies: list[str] = Field(
        default=[],
        description="addresses or networks (CIDR) of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed, "
        "as a JSON list",
    )
    insecure_http: bool = Field(
        default=False,
        description="listen on an address other than loopback though GRADIENT_API__PUBLIC_URL is not https: keys and "
        "passwords cross the network in the clear",
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
        default=30.0, gt=0, le=MAX_DAYS, description="days after which a browser session ends, however much it is used"
    )
    session_idle_days: float = Field(
        default=7.0, gt=0, le=MAX_DAYS, description="days without a request after which a browser session ends"
    )
    key_days: float = Field(
        default=90.0,
        ge=0,
        le=MAX_DAYS,
        description="days that a key works that was got by signing in with a password; 0: until it is revoked",
    )


class LimitSettings(SettingsGroup):
    """Limits per API key. A request over a limit gets 429 with a Retry-After."""

    requests_per_minute: int = Field(
        default=12_000, ge=0, description="requests a minute of one key, counted by each API process; 0: no limit"
    )
    submissions_per_minute: int = Field(
        default=3000,
        ge=0,
        description="submissions, dry runs and clones a minute of one key, counted by each API process; 0: no limit",
    )
    queued_per_key: int = Field(default=20_000, ge=0, description="queued jobs of one key; 0: no limit")
    queued_per_project: int = Field(default=50_000, ge=0, description="queued jobs of one project; 0: no limit")
    priority: int = Field(default=100, ge=0, le=100, description="highest priority that a submission may ask for")
    streams: int = Field(
        default=100, ge=0, description="logs that one key follows at once, counted by each API process; 0: no limit"
    )
    searches: int = Field(
        default=4,
        ge=0,
        description="searches, lists of metrics and removals of artifacts that one key has read at once, counted by "
        "each API process; more wait; 0: no limit",
    )
    uploads: int = Field(
        default=4,
        ge=0,
        description="submissions with an archive that one key has checked at once, counted by each API process; more "
        "wait; 0: no limit",
    )
    archives: int = Field(
        default=4, ge=1, description="archives that one API process checks at once, of all keys; more wait"
    )
    wait_seconds: float = Field(
        default=20.0, ge=0, description="seconds that a request waits for its turn before it is refused"
    )
    patterns: int = Field(default=100, ge=1, description="patterns of file names in one request of an original client")
    ids: int = Field(default=1000, ge=1, description="ids or tags in one request of an original client")


class MetricSettings(SettingsGroup):
    """Limits of job metrics."""

    names: int = Field(default=200, ge=1, description="names of metrics stored per job; values of others are left out")
    values: int = Field(
        default=1_000_000,
        ge=1000,
        description="values of metrics stored per job; lines are stored the more sparsely the more there were",
    )
    read_values: int = Field(
        default=200_000,
        ge=1000,
        description="values of metrics that one request reads; of a longer series evenly chosen rows are read",
    )
