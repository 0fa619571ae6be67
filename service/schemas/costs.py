from typing import Annotated

from fastapi import Query
from pydantic import Field

from core.jobs.costs.report import MAX_DAYS, By
from service.schemas.base import View

ByParameter = Annotated[By, Query(description="what to sum by; days are of UTC")]
ProjectParameter = Annotated[str | None, Query(max_length=200, description="name of the only project; null: all")]
DaysParameter = Annotated[int, Query(ge=1, le=MAX_DAYS, description="number of days, today included")]


class CostRowView(View):
    """A sum of the costs of jobs."""

    name: str = Field(description="of the project, the user, the key or the machine type; or the day")
    cost: float = Field(description="US dollars; nothing of simulated machines")
    simulated_cost: float = Field(description="US dollars that simulated machines would have cost")
    gpu_hours: float
    jobs: int = Field(description="jobs that ran in this time, also those that were deleted")


class Costs(View):
    """The costs of the last days, the dearest first, or by day."""

    by: By
    days: int
    rows: list[CostRowView]
