"""Values of `container`: image references, and the short names of `images.toml` next to this file.

An administrator's file of the same layout changes or adds names.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field

from core.catalogue.default_packages import locked_versions
from core.catalogue.machine_types import MachineType
from core.catalogue.toml_file import CatalogueEntry, TomlCatalogue
from core.errors import SpecInvalid

PACKAGED = Path(__file__).with_name("images.toml")

# The reference grammar of the distribution project: [host[:port]/]path[:tag][@digest].
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?\Z"
)
_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}\Z")
_HUB_PREFIXES = ("docker.io/library/", "index.docker.io/library/", "docker.io/", "index.docker.io/")
MAX_REFERENCE = 512  # characters of an image reference; more than any registry accepts


def is_reference(text: str) -> bool:
    return len(text) <= MAX_REFERENCE and _REFERENCE.match(text) is not None


def is_image_id(text: str) -> bool:
    """Check whether the text is a local image ID (`sha256:` and 64 hex digits), which no registry knows."""
    return _IMAGE_ID.match(text) is not None


def normalize_reference(reference: str) -> str:
    """Return the reference as engines list it: without Docker Hub's host, and with a digest or else a tag."""
    if is_image_id(reference):
        return reference
    for prefix in _HUB_PREFIXES:
        if reference.startswith(prefix):
            reference = reference.removeprefix(prefix)
            break
    name, at, digest = reference.partition("@")
    folder, slash, last = name.rpartition("/")
    repository, colon, _tag = last.partition(":")
    if at:
        return f"{folder}{slash}{repository}@{digest}"
    return name if colon else f"{name}:latest"


def with_digest(reference: str, digest: str | None) -> str | None:
    """Return the `container` value that names exactly the image that ran; None if it is unknown.

    `digest`: as recorded for the attempt: `repository@sha256:…`, or the image ID if no registry has the image.
    """
    if digest is None:
        return reference if "@" in reference else None
    return digest


def _repository(reference: str) -> str:
    """Return a reference without its tag or digest, as engines list it."""
    name = normalize_reference(reference).partition("@")[0]
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}{last.partition(':')[0]}"


class ShortName(CatalogueEntry):
    image: str = Field(min_length=1, description="image that it stands for")
    gpu_image: str | None = Field(None, description="the same for machine types with NVIDIA GPUs, if it differs")
    summary: str = Field(min_length=1, description="its contents in one line")
    package: str | None = Field(
        None, description="default package of jobs for which these packages stand for the image without containers"
    )


_LIST = TomlCatalogue("image name", "images.file", ShortName)


class ImageCatalogue:
    """All short names, in the order of the file."""

    def __init__(self, names: list[ShortName], packages: Mapping[str, str]) -> None:
        self._names = tuple(names)
        self._packages = packages
        for short in names:
            for image in (short.image, short.gpu_image):
                if image is not None and not is_reference(image):
                    raise SpecInvalid(
                        f"image name {short.name!r}: {image[:80]!r} is not an image reference; write name:tag",
                        field=_LIST.setting,
                    )
        self._by_name = _LIST.by_name(names)
        references = [(short, image) for short in names for image in (short.image, short.gpu_image) if image]
        self._by_repository = {_repository(image): short for short, image in reversed(references)}

    @classmethod
    def load(
        cls, path: Path = PACKAGED, override_path: Path | None = None, *, default_packages: bool = True
    ) -> "ImageCatalogue":
        """Read the list, and an administrator's changes on top of it.

        `default_packages`: whether jobs without a container have the default packages.
        """
        return cls(_LIST.read(path, override_path), locked_versions() if default_packages else {})

    def resolve(self, container: str | None, machine: MachineType) -> str | None:
        """Return the reference of a `container` on a machine type; None: the worker's default image.

        A name with a tag is never a short name.
        """
        if container is None:
            return None
        short = self._by_name.get(container)
        if short is None:
            return normalize_reference(container)
        image = short.gpu_image if machine.kind == "gpu" and short.gpu_image is not None else short.image
        return normalize_reference(image)

    def stand_in(self, image: str) -> str | None:
        """Return the package, with its version, for which the default packages stand for any tag of this image.

        A digest names exactly one image, for which nothing else stands. Returns none if nothing stands for the image.
        """
        short = None if "@" in image else self._by_repository.get(_repository(image))
        version = self._packages.get(short.package or "") if short is not None else None
        return None if short is None or version is None else f"{short.package} {version}"

    def __iter__(self) -> Iterator[ShortName]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)
