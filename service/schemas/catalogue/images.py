from pydantic import Field

from service.schemas.base import View


class ImageNameView(View):
    """A short name for `container`."""

    name: str
    aliases: list[str]
    image: str = Field(description="image reference that it stands for")
    gpu_image: str | None = Field(description="image reference for machine types with NVIDIA GPUs, if different")
    summary: str
    stand_in: bool = Field(
        description="whether a server that runs jobs without containers takes it: its default packages stand for it"
    )
    hosts: int = Field(description="number of hosts with a running worker that already have one of these images")


class ImageNames(View):
    """Every short name for `container`."""

    images: list[ImageNameView]
