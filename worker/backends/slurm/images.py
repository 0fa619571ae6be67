"""Images of containers: which one a name stands for now, and its file for Apptainer, made once by digest."""

import base64
import json
import os
import re
import threading
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode, urlsplit
from urllib.request import Request, parse_http_list, parse_keqv_list, urlopen

from core.catalogue.images import normalize_reference
from core.catalogue.registry_hosts import DOCKER_HUB, registry_host
from core.formatting import MIB
from core.ids import new_id
from core.settings import Settings
from core.system.canonical_host import is_loopback
from core.system.untrusted_folders import move
from worker.backends.base import LaunchError, LaunchSpec, Progress, UnusedImage
from worker.backends.process.isolated_programs import TooLong, run_here
from worker.backends.slurm.commands import Commands

IMAGE_FILE = "image"  # beside a job's control folder: the name of the image that it uses
_SECONDS = 3600.0  # for pull and conversion
_WAIT_SECONDS = 2.0
_UNUSED_SECONDS = 600.0
_LEVEL = re.compile(r"^[A-Z]+: +", re.MULTILINE)
_REGISTRY_SECONDS = 30.0
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
        with urlopen(request, timeout=_REGISTRY_SECONDS) as answer:  # noqa: S310 - the same
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


class ConvertedImages:
    """They are on the file system that the compute nodes share."""

    def __init__(self, settings: Settings, commands: Commands) -> None:
        self.folder = settings.root / "images" / "slurm"
        self._attempts, self._commands = settings.root / "attempts", commands
        self._max_bytes = settings.slurm.images_mb * MIB
        self._converting: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def ensure(
        self, spec: LaunchSpec, program: str, image: RegistryImage, auth: dict[str, str] | None, progress: Progress
    ) -> Path:
        """Return the file of an image, converted now if there is none. Raises `LaunchError`."""
        file, lock = self.folder / f"{image.name}.sif", self._converting[image.name]
        while not lock.acquire(timeout=_WAIT_SECONDS):
            progress("pulling", f"{spec.container}: another job is pulling it")
        new = file.with_name(f"{new_id('new')}.sif")
        try:
            if not file.exists():
                if spec.job_spec.image_pull_policy == "Never":
                    why = "it is not here, and its imagePullPolicy is Never"
                    raise LaunchError("image_pull", f"{spec.container}: {why}")
                file.parent.mkdir(parents=True, exist_ok=True)
                prefix, env = Path(program).name.upper(), self._commands.environment()
                env |= {f"{prefix}_DOCKER_{name.upper()}": value for name, value in (auth or {}).items()}
                env |= {f"{prefix}_NOHTTPS": "true"} if is_local(image.server) else {}
                command = ["nice", program, "--nocolor", "pull", "--disable-cache", str(new), f"docker://{image.name}"]
                _pull(spec, command, env, progress)
                move(new, file)
            os.utime(file)
        except OSError as error:
            raise LaunchError.of(error) from error
        finally:
            new.unlink(missing_ok=True)
            lock.release()
        return file

    def prune(self, *, everything: bool, dry_run: bool) -> list[UnusedImage]:
        """See `ImageBackend.prune_images`."""
        used, images = set(), []
        for file in self._attempts.glob(f"*/{IMAGE_FILE}"):
            with suppress(FileNotFoundError):
                used.add(file.read_text().strip())
        for file in self.folder.glob("**/*.sif"):
            with suppress(FileNotFoundError):
                name, status = str(file.relative_to(self.folder).with_suffix("")), file.stat()
                images.append(UnusedImage(name, status.st_size, status.st_mtime, built=False))
        total, removed = sum(image.bytes for image in images), []
        for image in sorted(images, key=lambda image: image.used_at):
            if not everything and total <= self._max_bytes:
                break
            if image.reference not in used and time.time() - image.used_at >= _UNUSED_SECONDS:
                if not dry_run:
                    (self.folder / f"{image.reference}.sif").unlink(missing_ok=True)
                total -= image.bytes
                removed.append(image)
        return removed


def _pull(spec: LaunchSpec, command: list[str], env: dict[str, str], progress: Progress) -> None:
    def report(line: str) -> None:
        progress("pulling", f"{spec.container}: {_LEVEL.sub('', line)}")

    try:
        code, output = run_here(command, env, _SECONDS, spec.check, report)
    except TooLong as error:
        raise LaunchError("image_pull", f"{spec.container}: {error}") from error
    if code:
        reason = "disk_full" if "no space left on device" in output.lower() else "image_pull"
        why = "; ".join(_LEVEL.sub("", output).split("\n")[-4:]).strip("; ")
        raise LaunchError(reason, f"{spec.container}: {why or f'{command[1]} ended with code {code}'}")
