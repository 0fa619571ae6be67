"""Images: have one on this host before a container is made of it."""

import time
from collections.abc import Iterator
from typing import Any

from docker.utils import parse_repository_tag

from core.settings import DockerSettings
from worker.backends.base import BackendError, Progress
from worker.backends.docker.engine import NOT_FOUND, Engine, EngineRefused

_TOLD_EVERY_SECONDS = 2.0
_DONE = frozenset({"Pull complete", "Already exists"})
_MEGA = 1e6


class Layers:
    """How far a pull is, from the engine's messages about single layers."""

    def __init__(self) -> None:
        self._bytes: dict[str, tuple[int, int]] = {}
        self._done: set[str] = set()

    def note(self, message: dict[str, Any]) -> None:
        """Take one message."""
        layer, status = message.get("id"), message.get("status", "")
        if layer is None or status.startswith("Pulling from"):
            return
        known = self._bytes.setdefault(layer, (0, 0))
        detail = message.get("progressDetail") or {}
        if status == "Downloading" and detail.get("total"):
            self._bytes[layer] = (detail["current"], detail["total"])
        elif status in {"Download complete", *_DONE}:
            self._bytes[layer] = (known[1], known[1])
        if status in _DONE:
            self._done.add(layer)

    def __str__(self) -> str:
        now, total = (sum(column) for column in zip(*self._bytes.values(), strict=True)) if self._bytes else (0, 0)
        return f"{len(self._done)} of {len(self._bytes)} layers, {now / _MEGA:.1f} of {total / _MEGA:.1f} MB"


class Images:
    """The images of one host."""

    def __init__(self, engine: Engine, settings: DockerSettings) -> None:
        self._engine = engine
        self._settings = settings

    def have(self, reference: str, progress: Progress) -> str:
        """Have the image here, pulling it if the settings say so; its id.

        Raises:
            BackendError: It cannot be had.
            EngineAway: The engine does not answer.
        """
        found = self._find(reference)
        if self._settings.pull == "always" or (found is None and self._settings.pull != "never"):
            self._pull(reference, progress)
            found = self._find(reference)
        if found is None:
            why = "it is not on this machine, whose settings say never to pull" * (self._settings.pull == "never")
            raise BackendError("image_pull", f"{reference}: {why or 'it was pulled and is not there'}")
        return found

    def _find(self, reference: str) -> str | None:
        try:
            return str(self._engine.call(lambda api: api.inspect_image(reference))["Id"])
        except EngineRefused as error:
            if error.status == NOT_FOUND:
                return None
            if error.passing:
                raise
            raise BackendError("image_pull", f"{reference}: {error.detail}") from error

    def _pull(self, reference: str, progress: Progress) -> None:
        progress("pulling", reference)
        deadline = time.monotonic() + self._settings.pull_seconds
        told = time.monotonic()
        layers = Layers()
        try:
            for message in self._messages(reference):
                if "error" in message:
                    raise BackendError("image_pull", f"{reference}: {message['error']}")
                layers.note(message)
                if time.monotonic() - told >= _TOLD_EVERY_SECONDS:
                    told = time.monotonic()
                    progress("pulling", f"{reference}: {layers}")
                if time.monotonic() > deadline:
                    raise BackendError(
                        "image_pull", f"{reference}: not pulled within {self._settings.pull_seconds:.0f} seconds"
                    )
        except EngineRefused as error:
            raise BackendError("image_pull", f"{reference}: {error.detail}") from error
        progress("provisioning", f"{reference} is here")

    def _messages(self, reference: str) -> Iterator[dict[str, Any]]:
        repository, tag = parse_repository_tag(reference)
        return self._engine.stream(
            lambda api: api.pull(repository, tag=tag or "latest", stream=True, decode=True)  # without a tag it is all
        )
