"""Asks a registry which image a name stands for now, by the distribution API."""

import base64
import json
import re
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, parse_http_list, parse_keqv_list, urlopen

from core.catalogue.images import normalize_reference
from core.catalogue.registry_hosts import DOCKER_HUB, registry_host
from core.system.canonical_host import is_loopback
from worker.backends.base import LaunchError

_SECONDS = 30.0
_MAX_ANSWER = 4 << 20
_HUB = "registry-1.docker.io"
_KINDS = ("oci.image.index.v1", "oci.image.manifest.v1", "docker.distribution.manifest.list.v2")
_ACCEPT = ", ".join(f"application/vnd.{kind}+json" for kind in (*_KINDS, "docker.distribution.manifest.v2"))
_REFUSALS = {401: "unauthorized", 403: "access denied", 404: "the registry has no such image"}


@dataclass(frozen=True, slots=True)
class RegistryImage:
    server: str  # host of the registry
    repository: str
    name: str  # with its digest, so that it never means another image


def is_local(host: str) -> bool:
    """Return whether a registry is on this machine, where HTTP will do, as for Docker."""
    return is_loopback(urlsplit(f"//{host}").hostname or "")


def find_image(reference: str, auth: dict[str, str] | None) -> RegistryImage:
    """Look an image up in its registry, which checks the login. Raises `LaunchError`."""
    host, name = registry_host(reference), normalize_reference(reference)
    name, _, version = name.partition("@") if "@" in name else name.rpartition(":")
    server, repository = (_HUB, name) if host == DOCKER_HUB else (host, name.partition("/")[2])
    if "/" not in name:
        repository = f"library/{name}"
    url = f"{'http' if is_local(host) else 'https'}://{server}/v2/{repository}/manifests/{version}"
    try:
        try:
            digest, _ = _read(url)
        except HTTPError as error:
            if error.code != HTTPStatus.UNAUTHORIZED:
                raise
            digest, _ = _read(url, _authorize(error.headers["WWW-Authenticate"], repository, auth))
    except (OSError, HTTPException, ValueError, LookupError, AttributeError, TypeError) as error:
        refusal = _REFUSALS.get(error.code) if isinstance(error, HTTPError) else None
        why = refusal or f"{host} does not answer as a registry does: {getattr(error, 'reason', error)}"
        raise LaunchError("image_pull", f"{reference}: {why}") from error
    if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
        raise LaunchError("image_pull", f"{reference}: {host} names it by {digest[:100]!r}, which is no SHA-256 digest")
    return RegistryImage(server, repository, f"{name}@{digest}")


def _read(url: str, authorization: str = "", method: str = "HEAD") -> tuple[str, bytes]:
    """Return the digest that an answer names, and its body. Docker Hub counts no HEAD as a pull."""
    request = Request(url, headers={"Accept": _ACCEPT} if method == "HEAD" else {}, method=method)  # noqa: S310 - http or https, as above
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    try:
        with urlopen(request, timeout=_SECONDS) as answer:  # noqa: S310 - the same
            return answer.headers.get("Docker-Content-Digest", ""), answer.read(_MAX_ANSWER)
    except HTTPError as error:
        error.close()
        raise


def _authorize(challenge: str, repository: str, auth: dict[str, str] | None) -> str:
    """Return the header that answers a registry: the login itself, or a token that it gives for the login."""
    login = f"{auth['username']}:{auth['password']}" if auth else ""
    basic = login and f"Basic {base64.b64encode(login.encode()).decode()}"
    scheme, _, values = challenge.partition(" ")
    if scheme.lower() != "bearer":
        return basic
    fields = {"scope": f"repository:{repository}:pull"} | parse_keqv_list(parse_http_list(values))
    realm = fields.pop("realm")
    if urlsplit(realm).scheme != "https" and not is_local(urlsplit(realm).netloc):
        raise ValueError(f"it asks for a login at {realm[:100]!r}, without encryption")
    token = json.loads(_read(f"{realm}?{urlencode(fields)}", basic, "GET")[1])
    return f"Bearer {token.get('token') or token['access_token']}"
