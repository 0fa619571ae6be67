"""Images in their registries: which one a name stands for now, if the registry gives it for this login."""

import base64
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit
from urllib.request import parse_http_list, parse_keqv_list

from core.catalogue.images import normalize_reference
from core.catalogue.registry_hosts import DOCKER_HUB, registry_host
from core.system.canonical_host import is_loopback

MAX_ANSWER = 4 << 20  # bytes
_HUB = "registry-1.docker.io"
_KINDS = ("oci.image.index.v1", "oci.image.manifest.v1", "docker.distribution.manifest.list.v2")
_ACCEPT = ", ".join(f"application/vnd.{kind}+json" for kind in (*_KINDS, "docker.distribution.manifest.v2"))
_REFUSALS = {
    401: ("login", "unauthorized"),
    403: ("login", "access denied"),
    404: ("missing", "the registry has no such image"),
}
_FAILURES = (OSError, HTTPException, ValueError, LookupError, AttributeError, TypeError)  # of what is no registry


class Answer(NamedTuple):
    status: int
    headers: "Mapping[str, str] | Message[str, str]"
    body: bytes


Read = Callable[[str, str, Mapping[str, str]], Answer]
"""Sends a method, URL and headers; follows redirects, without the headers."""


@dataclass(frozen=True, slots=True)
class RegistryImage:
    server: str  # host of the registry
    repository: str
    name: str  # with its digest, so that it never means another image


class ImageRefused(Exception):
    """`state`: missing; login: it takes a login, or another one; unknown: the registry could not be asked."""

    def __init__(self, state: str, why: str) -> None:
        super().__init__(why)
        self.state = state


def is_local(host: str) -> bool:
    """Return whether a registry is on this machine, where HTTP will do, as for Docker."""
    return is_loopback(urlsplit(f"//{host}").hostname or "")


class Registry:
    """The registry of an image. `auth`: username and password; None: there is no login."""

    def __init__(self, reference: str, auth: Mapping[str, str] | None, read: Read) -> None:
        self._read, self._auth, self._headers = read, auth, {"Accept": _ACCEPT}
        self.host, name = registry_host(reference), normalize_reference(reference)
        self._name, _, self._version = name.partition("@") if "@" in name else name.rpartition(":")
        is_hub, path = self.host == DOCKER_HUB, self._name if "/" in self._name else f"library/{self._name}"
        self._server, self._repository = (_HUB, path) if is_hub else (self.host, path.partition("/")[2])

    def find(self) -> RegistryImage:
        """Look the image up. Docker Hub counts no HEAD as a pull. Raises `ImageRefused`."""
        no_registry = f"{self.host} does not answer as a registry does: "
        try:
            answer = self._request("HEAD", self._version)
            if answer.status == HTTPStatus.UNAUTHORIZED:
                self._headers["Authorization"] = self._authorize(answer.headers["WWW-Authenticate"])
                answer = self._request("HEAD", self._version)
        except _FAILURES as error:
            raise ImageRefused("unknown", f"{no_registry}{getattr(error, 'reason', error)}") from error
        if answer.status != HTTPStatus.OK:
            raise ImageRefused(*_REFUSALS.get(answer.status, ("unknown", f"{no_registry}{answer.status}")))
        digest = answer.headers.get("Docker-Content-Digest", "")
        if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
            raise ImageRefused("unknown", f"{self.host} names it by {digest[:100]!r}, which is no SHA-256 digest")
        return RegistryImage(self._server, self._repository, f"{self._name}@{digest}")

    def size(self, digest: str) -> int | None:
        """Return the bytes of the compressed layers, on x86-64 if there is a choice; None: they are not known."""
        try:
            manifest = json.loads(self._request("GET", digest).body)
            if variants := manifest.get("manifests"):
                fitting = [variant for variant in variants if variant["platform"]["architecture"] == "amd64"]
                manifest = json.loads(self._request("GET", (fitting or variants)[0]["digest"]).body)
            return sum(int(layer["size"]) for layer in manifest["layers"])
        except _FAILURES:
            return None

    def _request(self, method: str, version: str) -> Answer:
        scheme = "http" if is_local(self.host) else "https"
        url = f"{scheme}://{self._server}/v2/{self._repository}/manifests/{version}"
        return self._read(method, url, self._headers)

    def _authorize(self, challenge: str) -> str:
        """Return the header that answers a registry: the login itself, or a token that it gives for the login."""
        login = f"{self._auth['username']}:{self._auth['password']}" if self._auth else ""
        basic = login and f"Basic {base64.b64encode(login.encode()).decode()}"
        scheme, _, values = challenge.partition(" ")
        if scheme.lower() != "bearer":
            return basic
        fields = {"scope": f"repository:{self._repository}:pull"} | parse_keqv_list(parse_http_list(values))
        realm = fields.pop("realm")
        if urlsplit(realm).scheme != "https" and not is_local(urlsplit(realm).netloc):
            raise ValueError(f"it asks for a login at {realm[:100]!r}, without encryption")
        answer = self._read("GET", f"{realm}?{urlencode(fields)}", {"Authorization": basic} if basic else {})
        if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
            raise ImageRefused(*_REFUSALS[answer.status])
        token = json.loads(answer.body)
        return f"Bearer {token.get('token') or token['access_token']}"
