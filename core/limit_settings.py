"""Settings of what one API key may use, and of how much is stored and read of what jobs measure."""

from pydantic import BaseModel, Field


class LimitSettings(BaseModel):
    """Limits of what one API key may use. A request over a limit is answered with 429 and a time to come back."""

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


class MetricSettings(BaseModel):
    """What jobs measure."""

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
