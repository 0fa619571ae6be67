"""Registries of image references, by Docker's rule, and credentials for them."""

import re
from dataclasses import dataclass, field

from core.errors import SpecInvalid

DOCKER_HUB = "docker.io"
_HUB_NAMES = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com"})
_HOST = re.compile(r"(?:[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?\Z")
_MAX_HOST = 255


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    host: str
    username: str
    password: str = field(repr=False)


def registry_host(reference: str) -> str:
    """Return the host (and port) of the registry that an image comes from.

    The part before the first slash is a host if it has a dot, a colon or a capital letter, or is localhost; otherwise
    the image is on Docker Hub.
    """
    first, slash, _ = reference.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        return _normalize_hub(first.lower())
    return DOCKER_HUB


def parse_host(given: str) -> str:
    host = given.removeprefix("https://").removeprefix("http://").rstrip("/").lower()
    if len(host) > _MAX_HOST or not _HOST.match(host):
        raise SpecInvalid(
            f"{given[:80]!r} is not the host of a registry. Write it as in an image's name, with its port if it has "
            "one: ghcr.io, localhost:5000; docker.io for Docker Hub.",
            field="host",
        )
    return _normalize_hub(host)


def _normalize_hub(host: str) -> str:
    return DOCKER_HUB if host in _HUB_NAMES else host
