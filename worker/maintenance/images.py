"""Reports this host's images to the database and removes unused ones."""

import logging
from itertools import chain

from core.jobs.scheduling import image_affinity
from worker.backends.base import LaunchError
from worker.context import Host

logger = logging.getLogger(__name__)


class Shelves:
    """The images of one host, in all of its backends.

    Args:
        host: The backends and the database.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._reported: set[str] | None = None

    def report(self) -> None:
        """Report the images on this host, if they are known and have changed.

        Raises:
            StoreUnavailable: The database does not answer.
        """
        told = [keeper.images() for keeper in self._host.image_keepers()]
        if None in told:
            return
        images = list(chain.from_iterable(one for one in told if one is not None))
        if set(images) != self._reported:
            self._host.write(lambda session: image_affinity.report(session, self._host.host, images))
            self._reported = set(images)

    def prune(self) -> int:
        """Remove images by disk usage and age; return how many."""
        try:
            return sum(len(keeper.prune_images(everything=False)) for keeper in self._host.image_keepers())
        except LaunchError as error:
            logger.warning("images_not_pruned", extra={"error": str(error)})
            return 0
