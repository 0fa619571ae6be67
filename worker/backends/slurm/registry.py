"""Asks a registry which image a name stands for now, by the distribution API."""

import base64
import hashlib
import json
import re
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, urlopen

from core.catalogue.images import normalize_reference
from core.catalogue.registry_hosts import DOCKER_HUB, registry_host
from core.system.canonical_host import is_loopback
from worker.backends.base import LaunchError

_SECONDS = 30.0
_MAX_ANSWER = 4 << 20
_HUB = "registry-1.docker.io"
_KINDS = ", ".join(
    f"application/vnd.{kind}+json"
    for kind in (
        "oci.image.index.v1",
        "oci.image.manifest.v1",
        "docker.distribution.manifest.list.v2",
        "docker.distribution.manifest.v2",
    )
)

_REFUSALS = {401: "unauthorized", 403: "access denied", 404: "the registry has no such image"}


@dataclass(frozen=True, slots=True)
class RegistryImage:
    host: str
    repository: str
    digest: str  # `sha256:…`

    @property
    def name(self) -> str:
        """Return the name that never means another image."""
        return normalize_reference(f"{self.host}/{self.repository}@{self.digest}")

    @property
    def server(self) -> str:
        return _HUB if self.host == DOCKER_HUB else self.host

    @property
    def in_clear(self) -> bool:
        """Return whether its registry is on this machine, where HTTP will do, as for Docker."""
        return _is_local(self.host)


def find_image(reference: str, auth: dict[str, str] | None) -> RegistryImage:
    """Look an image up in its registry, which checks the login. Raises `LaunchError`."""
    host, name = registry_host(reference), normalize_reference(reference)
    path = name if host == DOCKER_HUB else name.partition("/")[2]
    repository, _, version = path.partition("@") if "@" in path else path.rpartition(":")
    if host == DOCKER_HUB:
        repository = repository if "/" in repository else f"library/{repository}"
    server = f"http://{host}" if _is_local(host) else f"https://{_HUB if host == DOCKER_HUB else host}"
    url = f"{server}/v2/{repository}/manifests/{version}"
    try:
        status, headers, body = _read(url, {"Accept": _KINDS})
        if status == HTTPStatus.UNAUTHORIZED:
            authorization = _authorize(headers.get("WWW-Authenticate") or "", repository, auth)
            status, headers, body = _read(url, {"Accept": _KINDS, "Authorization": authorization})
    except (URLError, HTTPException, OSError, ValueError, AttributeError) as error:
        why = getattr(error, "reason", None) or error
        raise LaunchError("image_pull", f"{reference}: {host} does not answer as a registry does: {why}") from error
    if status != HTTPStatus.OK:
        raise LaunchError(
            "image_pull", f"{reference}: {_REFUSALS.get(status, f'{host} answered with status {status}')}"
        )
    digest = headers.get("Docker-Content-Digest") or f"sha256:{hashlib.sha256(body).hexdigest()}"
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise LaunchError("image_pull", f"{reference}: {host} names it by {digest[:100]!r}, which is no SHA-256 digest")
    return RegistryImage(host, repository, digest)


def _is_local(host: str) -> bool:
    return is_loopback(urlsplit(f"//{host}").hostname or "")


def _read(url: str, headers: dict[str, str]) -> tuple[int, Message, bytes]:
    request = Request(url)  # noqa: S310 - http or https, see above
    for name, value in headers.items():
        request.add_unredirected_header(name, value)
    try:
        with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - the same
            return answer.status, answer.headers, answer.read(_MAX_ANSWER)
    except HTTPError as error:
        with error:
            return error.code, error.headers, b""


def _authorize(challenge: str, repository: str, auth: dict[str, str] | None) -> str:
    """Return the header that answers a registry: the login itself, or a token that it gives for the login."""
    login = None if auth is None else f"{auth['username']}:{auth['password']}"
    basic = "" if login is None else f"Basic {base64.b64encode(login.encode()).decode()}"
    if not challenge.lower().startswith("bearer "):
        return basic
    given = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
    realm = given.get("realm", "")
    if urlsplit(realm).scheme != "https" and not _is_local(urlsplit(realm).netloc):
        raise ValueError(f"it asks for a login at {realm[:100]!r}, without encryption")
    query = {name: given[name] for name in ("service", "scope") if name in given}
    query = {"scope": f"repository:{repository}:pull"} | query
    _, _, body = _read(f"{realm}?{urlencode(query)}", {"Authorization": basic} if basic else {})
    token = json.loads(body or "{}")
    return f"Bearer {token.get('token') or token.get('access_token')}"
