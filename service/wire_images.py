"""Schemas of images; the fields of a job's own image are mixed into the schemas of jobs."""

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel


class AskedImage(BaseModel):
    """The image options of a submission, besides `container`."""

    image_pull_policy: str | None = Field(
        None, description="Always, IfNotPresent or Never; default: as the worker's settings say"
    )
    use_dockerfile: bool | None = Field(None, description="build the image from the workspace's Dockerfile")
    rel_dockerfile_path: str | None = Field(
        None, description="the Dockerfile's path in the workspace; default: Dockerfile"
    )
    build_only: bool | None = Field(None, description="build (and push) the image and run nothing")
    registry_target: str | None = Field(None, description="image reference that the built image is pushed to")


class WishedImage(BaseModel):
    """The same as a job has it, with what its `container` stands for."""

    image: str | None = Field(
        description="the image reference that container stands for; null: the worker's default image, or one that is "
        "built"
    )
    image_pull_policy: str | None
    use_dockerfile: bool
    rel_dockerfile_path: str | None
    build_only: bool
    registry_target: str | None


class RunImage(WishedImage):
    """The same with the image that its attempt runs."""

    image_digest: str | None = Field(
        description="the image of this attempt: repository@sha256:…, or the image's id where no registry knows it; "
        "null until it is known"
    )


class ImageNameView(BaseModel):
    """A short name for `container`."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)

    name: str
    aliases: list[str]
    image: str = Field(description="the image reference it stands for")
    gpu_image: str | None = Field(description="the same for machine types with NVIDIA cards, if it differs")
    summary: str
    hosts: int = Field(description="hosts with a running worker that have one of these images already")


class ImageNames(BaseModel):
    """Every short name for `container`."""

    images: list[ImageNameView]
