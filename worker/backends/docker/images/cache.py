"""The images pulled or built for jobs on this host: lists them, finds unused ones, and removes those that are due."""

import logging
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from core.settings import Settings
from worker.backends.base import UnusedImage
from worker.backends.docker.engine.client import Engine, EngineRefused
from worker.backends.docker.images.build import BUILT_REPOSITORY
from worker.backends.docker.images.pull import ImageStore, disk_percent, used_name
from worker.backends.docker.images.records import ImageRecords

logger = logging.getLogger(__name__)

UNUSED_TTL_SECONDS = 600.0  # since a job last used an image, until it may be removed: the next one wants it
_UNTAGGED = "<none>"
_BUILT_TTL_SECONDS = 86_400.0  # no registry has a built image, and no other workspace gets the same


class ImageCache:
    def __init__(
        self,
        engine: Engine,
        images: ImageStore,
        settings: Settings,
        measure: Callable[[str], float | None] = disk_percent,  # returns the used percentage of a folder's disk
    ) -> None:
        self._engine = engine
        self._images = images
        self._settings = settings.images
        self._measure = measure

    def prune(self, *, everything: bool, dry_run: bool) -> list[UnusedImage]:
        """See `ImageBackend.prune_images`."""
        file = self._images.records()
        with file.open() as records:
            here = self._list_images()
            for images in (records.ours, records.private):
                for image_id in images.keys() - here.keys():
                    del images[image_id]
            candidates = self._unused(records, here)
        removed = []
        for image_id, unused in candidates:
            if not everything and not self._is_due(unused):
                continue
            if dry_run:
                removed.append(unused)
                continue
            with file.open() as records:  # locked meanwhile: a job sees the whole image, or none
                if image_id in records.ours and _is_idle(self._used_at(image_id)) and self._remove(records, image_id):
                    removed.append(unused)
        return removed

    def _unused(self, records: ImageRecords, here: dict[str, dict[str, Any]]) -> list[tuple[str, UnusedImage]]:
        """Return the images that may be removed, the longest unused first."""
        running = {container["ImageID"] for container in self._engine.call(lambda api: api.containers(all=True))}
        unused = [
            (image_id, UnusedImage((names or [image_id])[0], here[image_id]["Size"], used_at, _is_built(names)))
            for image_id, names in records.ours.items()
            if image_id not in running and _is_idle(used_at := self._used_at(image_id))
        ]
        return sorted(unused, key=lambda pair: pair[1].used_at)

    def _used_at(self, image_id: str) -> float:
        """Return when a job last used the image: it is given a name then, or was made."""
        try:
            image = self._engine.call(lambda api: api.inspect_image(image_id))
        except EngineRefused:
            return time.time()  # removed meanwhile
        # An image need not say when it was made.
        times = (image.get("Created"), image.get("Metadata", {}).get("LastTagTime"))
        return max((datetime.fromisoformat(at).timestamp() for at in times if at), default=0.0)

    def _is_due(self, unused: UnusedImage) -> bool:
        if unused.built and time.time() - unused.used_at >= _BUILT_TTL_SECONDS:
            return True
        full = self._measure(str(self._engine.cached_info().get("DockerRootDir") or ""))
        return full is not None and full > self._settings.max_disk_percent

    def _remove(self, records: ImageRecords, image_id: str) -> bool:
        """Remove our names from an image, which deletes it unless it has others; return whether it was deleted."""
        listed = self._list_images().get(image_id)
        if listed is None:
            del records.ours[image_id]
            return False
        mark = used_name(image_id)
        present = _names(listed)
        names = [name for name in [*records.ours[image_id], mark] if name in present]
        # An image whose tag has moved to a newer one has at most its digest left, and is removed by its id.
        untagged = all("@" in name or name == mark for name in present)
        try:
            for name in names:
                # Never by force: an image in use by a container or another image stays.
                self._engine.call(lambda api, name=name: api.remove_image(name))  # type: ignore[misc]  # mypy cannot infer this lambda
            if untagged and image_id in self._list_images():
                self._engine.call(lambda api: api.remove_image(image_id))
        except EngineRefused as error:
            logger.info(
                "image_not_removed", extra={"image": records.ours.get(image_id) or image_id, "why": error.detail}
            )
            return False
        logger.info("image_removed", extra={"image": records.ours.pop(image_id) or image_id})
        return image_id not in self._list_images()

    def _list_images(self) -> dict[str, dict[str, Any]]:
        return {image["Id"]: image for image in self._engine.call(lambda api: api.images())}


def _is_idle(used_at: float) -> bool:
    return time.time() - used_at >= UNUSED_TTL_SECONDS


def _is_built(names: list[str]) -> bool:
    return all(name.startswith(f"{BUILT_REPOSITORY}/") for name in names)


def _names(listed: dict[str, Any]) -> list[str]:
    names = [*(listed.get("RepoTags") or []), *(listed.get("RepoDigests") or [])]
    return [name for name in names if _UNTAGGED not in name]
