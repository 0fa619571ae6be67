"""The images pulled or built for jobs on this host: lists them, finds unused ones, and removes those that are due."""

import logging
import time
from collections.abc import Callable
from typing import Any

from core.settings import Settings
from worker.backends.base import UnusedImage
from worker.backends.docker.engine.client import Engine, EngineRefused
from worker.backends.docker.images.pull import ImageStore, disk_percent
from worker.backends.docker.images.usage_journal import ImageRecord, UsageRecords

logger = logging.getLogger(__name__)

UNUSED_TTL_SECONDS = 600.0  # since a job last used an image, until it may be removed: the next one wants it
_UNTAGGED = "<none>"
_PULL_RECORD_SECONDS = 86_400.0
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
        journal = self._images.journal()
        with journal.open() as records:
            self._reconcile(records)
            candidates = self._unused(records)
        removed = []
        for image_id, unused in candidates:
            if not everything and not self._is_due(unused):
                continue
            if dry_run:
                removed.append(unused)
                continue
            with journal.open() as records:  # locked meanwhile: a job sees the whole image, or none
                if (
                    image_id in records.images
                    and self._is_idle(records.images[image_id])
                    and self._remove(records, image_id)
                ):
                    removed.append(unused)
        return removed

    def _reconcile(self, records: UsageRecords) -> None:
        """Record images of pulls whose worker died, and delete the records of images that others removed."""
        for reference, pull in list(records.pulls.items()):
            found = self._images.find(reference)
            if found is not None and found.id != pull.before:
                records.finish_pull(reference, found.id)
            elif time.time() - pull.at > _PULL_RECORD_SECONDS:
                del records.pulls[reference]
        here = self._list_images()
        for image_id in records.images.keys() - here.keys():
            del records.images[image_id]
        for image_id in records.private.keys() - here.keys():
            del records.private[image_id]

    def _unused(self, records: UsageRecords) -> list[tuple[str, UnusedImage]]:
        """Return the images that may be removed, the longest unused first."""
        listed = self._list_images()
        running = {one["ImageID"] for one in self._engine.call(lambda api: api.containers(all=True))}
        found = [
            (
                image_id,
                UnusedImage((entry.references or [image_id])[0], listed[image_id]["Size"], entry.used_at, entry.built),
            )
            for image_id, entry in records.images.items()
            if image_id in listed and image_id not in running and self._is_idle(entry)
        ]
        return sorted(found, key=lambda one: one[1].used_at)

    def _is_idle(self, entry: ImageRecord) -> bool:
        return time.time() - entry.used_at >= UNUSED_TTL_SECONDS

    def _is_due(self, unused: UnusedImage) -> bool:
        if unused.built and time.time() - unused.used_at >= _BUILT_TTL_SECONDS:
            return True
        full = self._measure(str(self._engine.cached_info().get("DockerRootDir") or ""))
        return full is not None and full > self._settings.max_disk_percent

    def _remove(self, records: UsageRecords, image_id: str) -> bool:
        """Remove our names from an image, which deletes it unless it has others; return whether it was deleted."""
        entry = records.images[image_id]
        listed = self._list_images().get(image_id)
        if listed is None:
            del records.images[image_id]
            return False
        names = [name for name in entry.references if name in _names(listed)]
        # An image whose tag has moved to a newer one has at most its digest left, and is removed by its id.
        untagged = not any("@" not in name for name in _names(listed))
        try:
            for name in names or ([image_id] if untagged else []):
                # Never by force: an image in use by a container or another image stays.
                self._engine.call(lambda api, name=name: api.remove_image(name))  # type: ignore[misc]  # mypy cannot infer this lambda
        except EngineRefused as error:
            logger.info("image_not_removed", extra={"image": entry.references or image_id, "why": error.detail})
            return False
        del records.images[image_id]
        logger.info("image_removed", extra={"image": entry.references or image_id})
        return image_id not in self._list_images()

    def _list_images(self) -> dict[str, dict[str, Any]]:
        return {one["Id"]: one for one in self._engine.call(lambda api: api.images())}


def _names(listed: dict[str, Any]) -> list[str]:
    names = [*(listed.get("RepoTags") or []), *(listed.get("RepoDigests") or [])]
    return [name for name in names if _UNTAGGED not in name]
