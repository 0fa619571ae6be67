"""Schemas of images."""

from pydantic import Field

from service.wire_base import View


class ImageNameView(View):
    """A short name for `container`."""

    name: str
    aliases: list[str]
    image: str = Field(description="the image reference it stands for")
    gpu_image: str | None = Field(description="the same for machine types with NVIDIA cards, if it differs")
    summary: str
    hosts: int = Field(description="hosts with a running worker that have one of these images already")


class ImageNames(View):
    """Every short name for `container`."""

    images: list[ImageNameView]
