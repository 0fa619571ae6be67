"""Builds images from a workspace's Dockerfile with the engine's own builder, and pushes them to the job's target.

The builder's output goes to the job's log. A built image is named `gradient-jobs/<job>:<attempt>`; it stays for a while
as a cache for the next build and is then removed like any other image pulled or built for a job.
"""

import json
import logging
import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import IO, Any, cast

from docker.utils import parse_repository_tag
from docker.utils.build import tar

from core.catalogue.images import normalize_reference
from core.settings import Settings
from core.system.untrusted_folders import chmod_tree
from gradient_cli.text import decode
from worker.backends.base import DEFAULT_SHM_BYTES, LaunchError, LaunchSpec, Progress
from worker.backends.docker.engine.client import Engine, EngineError, EngineRefused, EngineUnavailable
from worker.backends.docker.engine.progress_stream import EngineRequest, Message, stream_messages
from worker.backends.docker.images.pull import (
    TRANSFER_SECONDS,
    Auth,
    Image,
    ImageStore,
    ProgressThrottle,
    PullProgress,
    auth_header,
    disk_percent,
)
from worker.backends.docker.images.records import ImageRecordsFile

logger = logging.getLogger(__name__)

BUILT_REPOSITORY = "gradient-jobs"  # repositories of built images begin with this

_STEP = re.compile(r"Step (\d+)/(\d+) : (.*)")
_LAYER = re.compile(r" ---> ([0-9a-f]{12,64})\n\Z")
_DOWNLOADED = re.compile(r"Status: Downloaded newer image for (\S+)\Z")
_MAX_STEP_LENGTH = 100
BUILD_SECONDS = 3600.0
MAX_DISK_PERCENT = 90.0  # what is left is for the jobs that run
_CPU_PERIOD = 100_000
_READABLE, _SEARCHABLE = 0o444, 0o555


def built_name(spec: LaunchSpec) -> str:
    return f"{BUILT_REPOSITORY}/{spec.job_id}:{spec.attempt}"


class ImageBuilder:
    def __init__(self, engine: Engine, images: ImageStore, settings: Settings) -> None:
        self._engine = engine
        self._images = images
        self._settings = settings

    def build(
        self,
        spec: LaunchSpec,
        progress: Progress,  # called with the current step
        *,
        network: str,
        memory_bytes: int,
        push_auth: Auth | None = None,
    ) -> Image:
        """Build the attempt's image if it is not built yet, and push it if it has a target."""
        build, name = spec.build, built_name(spec)
        if build is None:
            raise LaunchError("image_build", "nothing to build")
        if not self._settings.images.builds:
            raise LaunchError("option_refused", "building images is not allowed on this host (GRADIENT_IMAGES__BUILDS)")
        file = self._images.records()
        if self._images.find(name) is None:
            self._build(spec, progress, file, _build_params(spec, build.dockerfile, network, memory_bytes))
        image = self._images.find(name)
        if image is None:
            raise LaunchError("image_build", "it was built but does not exist")
        with file.open() as records:
            records.add(image.id, name)
        if build.target is None:
            return image
        return replace(image, digest=self._push(build.target, image, progress, file, push_auth))

    def _build(self, spec: LaunchSpec, progress: Progress, file: ImageRecordsFile, params: dict[str, Any]) -> None:
        timeout_error = LaunchError("image_build", f"it was not built within {BUILD_SECONDS:.0f} seconds")
        pace = ProgressThrottle("building", progress, BUILD_SECONDS, timeout_error)
        output = _BuildOutput(spec.control / "log", pace)
        try:
            with _build_context(spec.workspace, params["dockerfile"]) as context:
                work = EngineRequest("/build", params, {"Content-Type": "application/x-tar"}, context)
                watch = self._disk_check(pace)
                for message in stream_messages(self._engine, work, watch):
                    output.update(message)
                    if "error" in message:
                        raise LaunchError("image_build", str(message["error"]).strip())
        except EngineRefused as error:
            raise LaunchError("image_build", error.detail) from error
        finally:
            output.close()
            # So that they are removed later.
            try:
                for reference in output.downloaded:
                    downloaded = self._images.find(reference)
                    with file.open() as records:
                        if downloaded is not None:
                            records.add(downloaded.id, normalize_reference(reference))
                layer = self._images.find(output.layer) if output.made and output.layer else None
                if layer is not None:
                    with file.open() as records:
                        records.add(layer.id, None)
            except (EngineUnavailable, LaunchError):
                logger.warning("build_not_recorded", exc_info=True)

    def _disk_check(self, pace: ProgressThrottle) -> Callable[[], None]:
        """Return a check of the pace and of the engine's disk, which nothing else keeps a step from filling."""
        folder = str(self._engine.cached_info().get("DockerRootDir"))

        def check() -> None:
            pace.check()
            full = disk_percent(folder)
            if full is not None and full > MAX_DISK_PERCENT:
                raise LaunchError(
                    "image_build",
                    f"the engine's disk is {full:.0f} % full; builds are stopped at {MAX_DISK_PERCENT:.0f} %",
                )

        return check

    def _push(self, target: str, image: Image, progress: Progress, file: ImageRecordsFile, auth: Auth | None) -> str:
        """Push under the target's name, which the image has only until then; return the digest from the registry."""
        name = normalize_reference(target)
        repository, tag = parse_repository_tag(name)
        timeout_error = LaunchError("image_push", f"{target}: the push took more than {TRANSFER_SECONDS:.0f} seconds")
        pace = ProgressThrottle("pushing", progress, TRANSFER_SECONDS, timeout_error)
        pace.words = target
        with file.keep_name(name):
            existing = self._images.find(name)
            if existing is not None and existing.id != image.id:
                raise LaunchError("image_push", f"{target} is the name of another image on this machine")
            try:
                self._engine.call(lambda api: api.tag(image.id, repository, tag, force=False))
                return self._watch_push(repository, tag or "latest", pace, auth)
            except EngineRefused as error:
                raise LaunchError("image_push", f"{target}: {error.detail}") from error
            finally:
                if existing is None:
                    self._untag(name)

    def _watch_push(self, repository: str, tag: str, pace: ProgressThrottle, auth: Auth | None) -> str:
        # The engine requires this header even without credentials. Jobs must not push with the credentials of the
        # worker's user.
        header = {"X-Registry-Auth": "e30="} | (auth_header(self._engine, repository, auth) if auth else {})
        work = EngineRequest(f"/images/{repository}/push", {"tag": tag}, header)
        layers, digest = PullProgress(), ""
        for message in stream_messages(self._engine, work, pace.check):
            if "error" in message:
                raise LaunchError("image_push", f"{repository}:{tag}: {message['error']}")
            layers.update(message)
            pace.words = f"{repository}:{tag}: {layers}"
            digest = (message.get("aux") or {}).get("Digest") or digest
        if not digest:
            raise LaunchError("image_push", f"{repository}:{tag}: the registry returned no digest")
        return f"{repository}@{digest}"

    def _untag(self, name: str) -> None:
        try:
            self._engine.call(lambda api: api.remove_image(name))
        except EngineError:
            logger.warning("push_target_not_untagged", exc_info=True, extra={"image": name})


class _BuildOutput:
    """Writes a build's output to the job's log and reports its steps."""

    def __init__(self, log: Path, pace: ProgressThrottle) -> None:
        # The job has not started, but an earlier try of this attempt may have left anything at this path.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        self._log = os.fdopen(os.open(log, flags, 0o600), "ab", buffering=0)
        self._pace = pace
        pace.words = "sending the workspace to the engine"
        self.downloaded: list[str] = []
        self.layer: str | None = None  # the last intermediate image
        self.made = False  # true if it ran a step; else the last image is the base image

    def update(self, message: Message) -> None:
        text = message.get("stream") or (f"{message['error']}\n" if "error" in message else "")
        if text:
            self._log.write(text.encode())
        step, layer = _STEP.match(text), _LAYER.match(text)
        if step:
            self._pace.words = f"step {step[1]} of {step[2]}: {step[3][:_MAX_STEP_LENGTH]}"
            self.made = self.made or not step[3].startswith(("FROM", "ARG"))
        if layer:
            self.layer = layer[1]
        fetched = _DOWNLOADED.match(str(message.get("status", "")))
        if fetched:
            self.downloaded.append(fetched[1])

    def close(self) -> None:
        self._log.close()


def _build_params(spec: LaunchSpec, dockerfile: str, network: str, default_memory_bytes: int) -> dict[str, Any]:
    """Build the parameters of `POST /build` (Engine API 1.41), as close to a job's container as possible.

    The engine's builder cannot drop capabilities, set a user, limit processes or forbid new privileges.
    """
    memory, cpus = spec.memory_bytes or default_memory_bytes, spec.job_spec.cpus
    return {
        "t": built_name(spec),
        "dockerfile": dockerfile,
        "rm": True,
        "forcerm": True,  # also what a failed step leaves
        "networkmode": network,
        "memory": memory,
        "memswap": memory,
        "shmsize": spec.shared_mem_bytes or DEFAULT_SHM_BYTES,
        "ulimits": json.dumps([{"Name": "core", "Soft": 0, "Hard": 0}]),
        **({"cpuperiod": _CPU_PERIOD, "cpuquota": round(cpus * _CPU_PERIOD)} if cpus else {}),
    }


def _build_context(workspace: Path, dockerfile: str) -> IO[bytes]:
    """Return the workspace as the builder gets it, without what its .dockerignore excludes."""
    path = workspace / dockerfile
    try:
        inside = path.resolve(strict=True).is_relative_to(workspace.resolve())
        regular = stat.S_ISREG(path.lstat().st_mode)
    except (OSError, RuntimeError):
        raise LaunchError("image_build", f"{dockerfile} is not in the workspace") from None
    if not inside or not regular:
        raise LaunchError("image_build", f"{dockerfile} is not a regular file in the workspace")
    _make_readable(workspace)
    return cast("IO[bytes]", tar(workspace, exclude=_ignore_patterns(workspace), dockerfile=(dockerfile, None)))


def _make_readable(workspace: Path) -> None:
    """Make everything that goes into the image readable for all: its files belong to root, and no job runs as root."""
    chmod_tree(workspace, lambda mode: mode | (_SEARCHABLE if mode & stat.S_IXUSR else _READABLE))


def _ignore_patterns(workspace: Path) -> list[str]:
    path = workspace / ".dockerignore"
    if path.is_symlink() or not path.is_file():
        return []
    lines = (line.strip() for line in decode(path.read_bytes(), "replace").splitlines())
    return [line for line in lines if line and not line.startswith("#")]
