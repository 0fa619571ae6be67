from pydantic import Field

from service.schemas.base import Time, View


class TpuView(View):
    """A TPU that was requested and is not known to be deleted."""

    name: str = Field(description="id in its zone")
    zone: str
    provisioning: str = Field(
        description="queued: a queued resource and its node; node: created directly; pool: an existing node"
    )
    state: str = Field(
        description="the cloud's name of the state; intended: not requested yet; deleting: not deleted yet"
    )
    health: str | None = Field(description="the cloud's name of the health; null: not known")
    detail: str | None
    job_id: str = Field(description="job that owns it")
    owned: bool = Field(description="whether that job still runs the attempt; else it is deleted next")
    job_name: str
    attempt: int
    machine_type: str
    simulated: bool
    host: str = Field(description="machine whose worker requested it")
    requested_at: Time
    seen_at: Time | None = Field(description="when the cloud last reported it")
    billed_at: Time | None = Field(description="when billing started; null: not billed yet")
    price_per_hour: float = Field(description="US dollars; of spot capacity, if it is that and its price is known")
    cost: float = Field(description="US dollars so far")


class Tpus(View):
    """The TPUs, oldest first."""

    tpus: list[TpuView]
    unowned: dict[str, str] = Field(
        description="what else the cloud has with the label of the service: its owner, by `zone/name`"
    )
    refusal: str | None = Field(
        description="since when Google refuses the workers or does not answer them, and its words; null: it answers"
    )
    recent_cost: float = Field(
        description="US dollars that all TPUs have cost in the last 30 days: those of deleted jobs too, none simulated"
    )
