"""The place of outputs: they stay in their folder, or are copied to Cloud Storage as they are written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from .errors import BucketError
from .terminal import say


class Destination:
    """A folder, and a prefix in a bucket that mirrors it.

    An object appears whole or not at all, so that readers of the bucket never see half a checkpoint.

    Args:
        folder: The folder that outputs are written to.
        url: `gs://…` that they are copied to; None: they stay in the folder.
    """

    def __init__(self, folder: Path, url: str | None) -> None:
        self._folder = folder
        self._url = url.rstrip("/") if url is not None else None
        self._sent: dict[str, tuple[int, int]] = {}

    @property
    def shown(self) -> str:
        """Name for the user."""
        return self._url or str(self._folder)

    def fetch(self, name: str) -> None:
        """Download an earlier run's outputs from a folder of the bucket.

        Raises:
            BucketError: Cloud Storage does not return them.
        """
        with self._answering():
            self._fetch(name)

    def publish(self) -> None:
        """Copy new and changed files, and remove deleted ones.

        Raises:
            BucketError: Cloud Storage does not accept them.
        """
        with self._answering():
            self._publish()

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            raise BucketError(f"Cloud Storage at {self.shown}: {error.message}") from error

    def _fetch(self, name: str) -> None:
        if self._url is None or not tf.io.gfile.isdir(f"{self._url}/{name}"):
            return
        (self._folder / name).mkdir(parents=True, exist_ok=True)
        for found in tf.io.gfile.listdir(f"{self._url}/{name}"):
            # A folder's name ends with a slash, and the trainer has no folders here.
            if "/" not in found:
                local = self._folder / name / found
                tf.io.gfile.copy(f"{self._url}/{name}/{found}", str(local), overwrite=True)
                self._sent[f"{name}/{found}"] = _state(local)

    def _publish(self) -> None:
        if self._url is None:
            return
        there = {str(path.relative_to(self._folder)): path for path in self._folder.rglob("*") if path.is_file()}
        for name, path in sorted(there.items()):
            state = _state(path)
            if self._sent.get(name) != state:
                tf.io.gfile.makedirs(f"{self._url}/{name}".rpartition("/")[0])
                tf.io.gfile.copy(str(path), f"{self._url}/{name}", overwrite=True)
                self._sent[name] = state
        for name in self._sent.keys() - there.keys():
            tf.io.gfile.remove(f"{self._url}/{name}")
            del self._sent[name]

    def announce(self) -> None:
        """Print the place of outputs."""
        say(f"output    {self.shown}")


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
