from typing import Literal

from pydantic import Field

from service.schemas.base import View


class CostRowView(View):
    """A sum of the costs of jobs."""

    name: str = Field(description="of the project, the user, the key or the machine type; or the day")
    cost: float = Field(description="US dollars")
    gpu_hours: float
    jobs: int = Field(description="jobs that ran in this time, also those that were deleted")


class Costs(View):
    """The costs of the last days, the dearest first, or by day."""

    by: Literal["project", "user", "key", "machine", "day"]
    days: int
    rows: list[CostRowView]
