"""What `container` may say: image references, and the short names of `images.toml` beside this file.

An administrator's file of the same layout changes or adds names.
"""

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.errors import SpecInvalid
from core.machines import MachineType

PACKAGED = Path(__file__).with_name("images.toml")

# The reference grammar of the distribution project: [host[:port]/]path[:tag][@digest].
_REFERENCE = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::[0-9]{1,5})?/)?"
    r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?\Z"
)
_IMAGE_ID = re.compile(r"sha256:[0-9a-f]{64}\Z")
_HUB = ("docker.io/library/", "index.docker.io/library/", "docker.io/", "index.docker.io/")
MAX_REFERENCE = 512
"""Characters of an image reference: more than any registry takes."""


def is_reference(text: str) -> bool:
    """Whether the text has the form of an image reference."""
    return len(text) <= MAX_REFERENCE and _REFERENCE.match(text) is not None


def is_image_id(text: str) -> bool:
    """Whether the text is the id of an image on some host (`sha256:` and 64 hex digits), which no registry knows."""
    return _IMAGE_ID.match(text) is not None


def canonical(reference: str) -> str:
    """The reference as engines list it: without Docker Hub's own name, and with a tag or, rather, a digest."""
    if is_image_id(reference):
        return reference
    for prefix in _HUB:
        if reference.startswith(prefix):
            reference = reference.removeprefix(prefix)
            break
    name, at, digest = reference.partition("@")
    place, slash, last = name.rpartition("/")
    repository, colon, _tag = last.partition(":")
    if at:
        return f"{place}{slash}{repository}@{digest}"
    return name if colon else f"{name}:latest"


def pinned(reference: str, digest: str | None) -> str | None:
    """What names exactly the image that ran, for `container`; None where that cannot be told.

    Args:
        reference: The reference that was resolved.
        digest: As recorded for the attempt: `repository@sha256:…`, or the image's id where no registry knows it.
    """
    if digest is None:
        return reference if "@" in reference else None
    return digest


class ShortName(BaseModel):
    """One short name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, description="what users say")
    aliases: tuple[str, ...] = Field((), description="other names of the same image")
    image: str = Field(min_length=1, description="what it stands for")
    gpu_image: str | None = Field(None, description="the same for machine types with NVIDIA cards, if it differs")
    summary: str = Field(min_length=1, description="what is in it, in a line")

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a `container` means.

    Attributes:
        image: The reference, as engines list it; None: the worker's default image.
        short_name: The name it was resolved from, if it was one.
    """

    image: str | None
    short_name: str | None = None


class ImageCatalogue:
    """Every short name, in the order of the file.

    Args:
        names: They; names and aliases must all differ.

    Raises:
        SpecInvalid: Two of them share a name, or one stands for something that is no image reference.
    """

    def __init__(self, names: list[ShortName]) -> None:
        self._names = tuple(names)
        self._by_name: dict[str, ShortName] = {}
        for short in names:
            for image in (short.image, short.gpu_image):
                if image is not None and not is_reference(image):
                    raise SpecInvalid(
                        f"image name {short.name!r}: {image[:80]!r} is not an image reference; write name:tag",
                        field="images.file",
                    )
            for name in short.names:
                other = self._by_name.setdefault(name, short)
                if other is not short:
                    raise SpecInvalid(
                        f"image name {short.name!r}: the name {name!r} already means {other.name!r}; change one of "
                        "them",
                        field="images.file",
                    )

    @classmethod
    def load(cls, path: Path = PACKAGED, override_path: Path | None = None) -> "ImageCatalogue":
        """Reads the list, and an administrator's changes on top of it.

        Args:
            path: The full list.
            override_path: Tables that change single values of a name, or add names.

        Raises:
            SpecInvalid: A file is missing, is no TOML or has an impossible value; the message says where.
        """
        tables = _read(path)
        for name, table in _read(override_path).items() if override_path else ():
            tables[name] = tables.get(name, {}) | table
        where = f"{path} and {override_path}" if override_path else str(path)
        return cls([_short_name(name, table, where) for name, table in tables.items()])

    def resolve(self, container: str | None, machine: MachineType) -> Resolved:
        """What a `container` means on a machine type; a name with a tag is never a short one."""
        if container is None:
            return Resolved(None)
        short = self._by_name.get(container)
        if short is None:
            return Resolved(canonical(container))
        image = short.gpu_image if machine.kind == "gpu" and short.gpu_image is not None else short.image
        return Resolved(canonical(image), short.name)

    def __iter__(self) -> Iterator[ShortName]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        with path.open("rb") as file:
            tables = tomllib.load(file)
    except OSError as error:
        raise SpecInvalid(f"{path}: {error.strerror}; point GRADIENT_IMAGES__FILE at a readable file") from error
    except ValueError as error:
        raise SpecInvalid(f"{path}: not valid TOML: {error}") from error
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise SpecInvalid(f"{path}: {name!r} is no image name; every entry is a table, [{name!r}]")
    return tables


def _short_name(name: str, table: dict[str, Any], where: str) -> ShortName:
    try:
        return ShortName.model_validate(table | {"name": name})
    except ValidationError as error:
        first = error.errors()[0]
        value = ".".join(map(str, first["loc"]))
        raise SpecInvalid(f"{where}: image name {name!r}, {value}: {first['msg']}") from error
