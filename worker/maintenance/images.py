"""Reports this host's images to the database and removes unused ones."""

import logging
from itertools import chain

from core.jobs.scheduling import image_affinity
from worker.backends.base import LaunchError
from worker.context import WorkerContext

logger = logging.getLogger(__name__)


class ImageSweep:
    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._reported: set[str] | None = None

    def report(self) -> None:
        """Report the images on this host, if they are known and have changed."""
        lists = [backend.images() for backend in self._context.image_backends()]
        if None in lists:
            return
        images = list(chain.from_iterable(one for one in lists if one is not None))
        if set(images) != self._reported:
            self._context.write(
                lambda session: image_affinity.replace_host_images(session, self._context.hostname, images)
            )
            self._reported = set(images)

    def prune(self) -> int:
        """Remove images by disk usage and age; return how many."""
        try:
            return sum(len(backend.prune_images(everything=False)) for backend in self._context.image_backends())
        except LaunchError as error:
            logger.warning("images_not_pruned", extra={"error": str(error)})
            return 0
