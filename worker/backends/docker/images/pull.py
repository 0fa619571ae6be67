"""Provides images on this host before containers are created from them."""

import contextlib
import hashlib
import shutil
import time
from dataclasses import dataclass, field
from typing import Any

from docker import auth as registry_auth
from docker.utils import parse_repository_tag

from core.catalogue.images import is_image_id, normalize_reference
from core.settings import Settings
from worker.backends.base import LaunchError, Progress
from worker.backends.docker.engine.client import NOT_FOUND, Engine, EngineRefused, EngineUnavailable
from worker.backends.docker.engine.progress_stream import EngineRequest, stream_messages
from worker.backends.docker.images.records import ImageRecordsFile

Auth = dict[str, str]
"""Credentials for one registry in the engine's format: `username` and `password`, or `identitytoken`."""

POLICIES = {"Always": "always", "IfNotPresent": "missing", "Never": "never"}
"""The settings' names of a job's pull policies."""

TRANSFER_SECONDS = 3600.0  # time limit of a pull or a push: 40 GB at 12 MB/s
REPORT_SECONDS = 2.0
_PUSH_WAIT_SECONDS = 1.0
_DONE = frozenset({"Pull complete", "Already exists"})
_MEGA = 1e6
_USED_REPOSITORY = "gradient-jobs/used"


@dataclass(frozen=True, slots=True)
class Image:
    id: str
    digest: str  # `repository@sha256:…` as in its registry; its id if it has no digest
    config: dict[str, Any] = field(default_factory=dict)  # its configuration, in the engine's format

    @property
    def variables(self) -> frozenset[str]:
        return frozenset(variable.partition("=")[0] for variable in self.config.get("Env") or ())


def used_name(image_id: str) -> str:
    """Return a name that an image of ours is given at each use."""
    return f"{_USED_REPOSITORY}:{image_id.rpartition(':')[2][:32]}"


def disk_percent(folder: str) -> float | None:
    """Return the used percentage of a folder's disk; None if the folder is not on this machine."""
    try:
        usage = shutil.disk_usage(folder)
    except OSError:
        return None
    return 100 * usage.used / (usage.used + usage.free)


class PullProgress:
    """Progress of a pull, from the engine's messages about single layers."""

    def __init__(self) -> None:
        self._bytes: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()
        self._retry_message = ""

    def update(self, message: dict[str, Any]) -> None:
        layer, status = message.get("id"), message.get("status", "")
        if layer is None or status.startswith("Pulling from"):
            return
        counts = self._bytes.setdefault(layer, (0, 0))
        self._retry_message = f", {status[0].lower()}{status[1:]}" if status.startswith("Retrying") else ""
        detail = message.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._bytes[layer] = (detail["current"], detail["total"])
        elif status in {"Download complete", *_DONE}:
            self._bytes[layer] = (counts[1], counts[1])
        if status in _DONE:
            self._done.add(layer)

    def __str__(self) -> str:
        now, total = (sum(column) for column in zip(*self._bytes.values(), strict=True)) if self._bytes else (0, 0)
        count = f"{len(self._done)} of {len(self._bytes)} layers"
        return f"{count}, {now / _MEGA:.1f} of {total / _MEGA:.1f} MB{self._retry_message}"


class ProgressThrottle:
    """Reports progress at intervals, and enforces a time limit. `progress`: called with the phase and the text."""

    def __init__(self, phase: str, progress: Progress, seconds: float, timeout_error: LaunchError) -> None:
        self._phase = phase
        self._progress = progress
        self._deadline = time.monotonic() + seconds
        self._timeout_error = timeout_error
        self._report_at = 0.0
        self.words = ""

    def check(self) -> None:
        """Report the progress if due, even without any: the callee may want to abort. Raises after the time limit."""
        current = time.monotonic()
        if current >= self._deadline:
            raise self._timeout_error
        if current >= self._report_at:
            self._report_at = current + REPORT_SECONDS
            self._progress(self._phase, self.words)


class ImageStore:
    def __init__(self, engine: Engine, settings: Settings, *, seconds: float = TRANSFER_SECONDS) -> None:
        self._engine = engine
        self._seconds = seconds
        self._folder = settings.root / "images"
        self._settings = settings.docker

    def records(self) -> ImageRecordsFile:
        return ImageRecordsFile(self._folder, str(self._engine.cached_info().get("ID") or ""))

    def ensure(
        self, reference: str, progress: Progress, *, policy: str | None = None, auth: Auth | None = None
    ) -> Image:
        """Ensure that the image is on this host, pulling it if the policy requires that.

        Args:
            reference: The image; an id is only looked up on this host.
            progress: Called with the progress of a pull.
            policy: Always, IfNotPresent or Never; None: the setting.
            auth: Credentials for its registry; None: those of the worker's own `docker login`.
        """
        pull = "never" if is_image_id(reference) else POLICIES[policy] if policy else self._settings.pull
        file = self.records()
        while file.is_name_held(normalize_reference(reference)):
            progress("provisioning", f"{reference} is being pushed from this machine")
            time.sleep(_PUSH_WAIT_SECONDS)
        image = self.find(reference)
        if pull == "always" or (image is None and pull != "never"):
            self._pull(reference, progress, file, auth)
            image = self.find(reference)
        image = self._record_use(reference, image, file)
        if image is None:
            raise LaunchError("image_pull", f"{reference}: {_why_missing(reference, pull, policy)}")
        self._check_access(reference, image, file, auth)
        return image

    def find(self, reference: str, name: str | None = None) -> Image | None:
        """Find the image of this name or id on this host."""
        try:
            inspected = self._engine.call(lambda api: api.inspect_image(reference))
        except EngineRefused as error:
            if error.status == NOT_FOUND:
                return None
            if error.transient:
                raise
            raise LaunchError("image_pull", f"{reference}: {error.detail}") from error
        return Image(str(inspected["Id"]), _digest(name or reference, inspected), inspected.get("Config") or {})

    def of_container(self, image_id: str, reference: str | None) -> Image:
        """Return a container's image; with its id as digest if the image itself was removed already."""
        return self.find(image_id, reference) or Image(image_id, image_id)

    def _record_use(self, reference: str, image: Image | None, file: ImageRecordsFile) -> Image | None:
        """Record a use of an image of ours: the engine keeps when an image was last given a name. Finds it again."""
        if image is None:
            return None
        with file.open() as records:
            if image.id not in records.ours:
                return image
            name, _, tag = used_name(image.id).partition(":")
            self._engine.call(lambda api: api.tag(image.id, name, tag, force=True))
        return self.find(reference)

    def _check_access(self, reference: str, image: Image, file: ImageRecordsFile, auth: Auth | None) -> None:
        """Ask the registry, if it gave the image to certain accounts only and this job's is not one of them.

        A pull proves nothing: an engine that has the image does not query the registry for a reference by digest.
        """
        with file.open() as records:
            allowed = records.private.get(image.id)
        if allowed is None or (mark := _account_hash(auth)) in allowed:
            return
        try:
            self._engine.call(lambda api: api.inspect_distribution(image.digest, auth_config=auth))
        except EngineRefused as error:
            raise LaunchError("image_pull", f"{reference}: {error.detail}") from error
        with file.open() as records:
            records.record_access(image.id, mark)

    def _pull(self, reference: str, progress: Progress, file: ImageRecordsFile, auth: Auth | None) -> None:
        name = normalize_reference(reference)
        timeout_text = f"{reference}: the pull took more than {self._seconds:.0f} seconds"
        pace = ProgressThrottle("pulling", progress, self._seconds, LaunchError("image_pull", timeout_text))
        pace.words = reference
        mark, present = _account_hash(auth), self._ids()
        try:
            layers = PullProgress()
            repository, tag = parse_repository_tag(reference)
            params = {"fromImage": repository, "tag": tag or "latest"}  # without a tag, all of them would be pulled

            work = EngineRequest("/images/create", params, auth_header(self._engine, repository, auth))
            for message in stream_messages(self._engine, work, pace.check):
                if "error" in message:
                    raise LaunchError("image_pull", f"{reference}: {message['error']}")
                layers.update(message)
                pace.words = f"{reference}: {layers}"
        except EngineRefused as error:
            raise LaunchError("image_pull", f"{reference}: {error.detail}") from error
        finally:
            with contextlib.suppress(EngineUnavailable, LaunchError):
                image = self.find(reference)
                with file.open() as records:
                    if image is not None and (image.id not in present or image.id in records.ours):
                        records.add(image.id, name)
                    if image is not None and image.id not in present and mark is not None:
                        records.record_access(image.id, mark)
        progress("provisioning", f"{reference} is here")

    def _ids(self) -> frozenset[str]:
        """Return the ids of all images on this host: each is open to all jobs, or its accounts are already recorded."""
        return frozenset(image["Id"] for image in self._engine.call(lambda api: api.images(all=True)))


def _account_hash(auth: Auth | None) -> str | None:
    """Return a hash that identifies an account without revealing its password."""
    if auth is None:
        return None
    salt = f"gradient-jobs {auth.get('serveraddress', '')} {auth.get('username', '')}".encode()
    password = (auth.get("password") or auth.get("identitytoken") or "").encode()
    return hashlib.scrypt(password, salt=salt, n=2**14, r=8, p=1, dklen=16).hex()


def auth_header(engine: Engine, repository: str, auth: Auth | None) -> dict[str, str]:
    """Build the header with the credentials for a repository's registry; empty if there are none."""
    if auth is None:
        registry, _ = registry_auth.resolve_repository_name(repository)
        header = engine.call(lambda api: registry_auth.get_config_header(api, registry))
    else:
        header = registry_auth.encode_header(auth)
    return {"X-Registry-Auth": header.decode("ascii")} if header else {}


def _digest(reference: str, inspected: dict[str, Any]) -> str:
    """Return the registry's digest of the image, preferring the one of its own repository."""
    digests: list[str] = inspected.get("RepoDigests") or []
    repository, _ = parse_repository_tag(normalize_reference(reference))
    of_repository = [digest for digest in digests if digest.partition("@")[0] == repository]
    return (of_repository or digests or [str(inspected["Id"])])[0]


def _why_missing(reference: str, pull: str, policy: str | None) -> str:
    if is_image_id(reference):
        return "this machine has no image with this id, and images cannot be pulled by id"
    if pull == "never":
        whose = "its imagePullPolicy is Never" if policy else "its settings forbid pulling"
        return f"it is not on this machine, and {whose}"
    return "it was pulled but does not exist"
