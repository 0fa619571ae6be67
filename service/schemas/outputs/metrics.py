from typing import Literal

from pydantic import Field

from service.schemas.base import Time, View


class PointView(View):
    """One value of a metric."""

    step: float | None
    time: Time
    value: float | None = Field(description="null if the job wrote NaN or infinity")


class SeriesView(View):
    """One metric over time."""

    name: str
    source: Literal["job", "system"]
    points: list[PointView]
    last: float | None
    min: float | None
    max: float | None


class Metrics(View):
    """A job's metrics."""

    series: list[SeriesView]
    left_out: str | None = Field(
        None, description="data left out because of a limit other than `maxPoints`, and the limit; null: none"
    )
