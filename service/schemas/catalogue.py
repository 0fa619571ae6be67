"""Schemas of what a job can choose from: machine types, and short names of images."""

from pydantic import Field

from service.schemas.base import View


class MachineTypeView(View):
    """A machine type."""

    name: str
    aliases: list[str]
    backend: str
    accelerator: str
    count: int
    cpus: int | None
    memory_gb: float
    memory_bandwidth_gbps: float
    tflops: dict[str, float] = Field(description="peaks: measured if available, otherwise from the data sheet")
    measured: bool = Field(description="whether its peaks were measured")
    price_per_hour: float
    price_source: str
    price_is_old: bool = Field(description="whether the price is dated more than six months ago")
    spec_source: str
    simulated: bool = Field(description="whether its jobs run on a stand-in")
    available: bool = Field(description="whether a running worker offers it now")


class MachineTypes(View):
    """Every machine type."""

    machine_types: list[MachineTypeView]
    default: str = Field(description="name that clients send for a job without a machine type")


class ImageNameView(View):
    """A short name for `container`."""

    name: str
    aliases: list[str]
    image: str = Field(description="image reference that it stands for")
    gpu_image: str | None = Field(description="image reference for machine types with NVIDIA GPUs, if different")
    summary: str
    stand_in: bool = Field(
        description=(
            "whether a server that runs jobs without containers accepts it, replaced by the server's default packages"
        )
    )


class ImageNames(View):
    """Every short name for `container`."""

    images: list[ImageNameView]
