"""Copy outputs to Cloud Storage as they are written."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import tensorflow as tf

from gradient_trainer.errors import BucketError

_LAST_SECONDS = 600.0
_PAUSE_SECONDS = 10.0


class GcsSync:
    """A folder of outputs, and a prefix in a bucket that mirrors it.

    An object appears whole or not at all, so that readers of the bucket never see half a checkpoint. `url`: `gs://…`
    that they are copied to; None: they stay in the folder.
    """

    def __init__(self, folder: Path, url: str | None) -> None:
        self.folder = folder
        self._url = url.rstrip("/") if url is not None else None
        self._sent: dict[str, tuple[int, int]] = {}

    @property
    def location(self) -> str:
        return self._url or str(self.folder)

    def download(self, name: str) -> None:
        """Download an earlier run's outputs from a folder of the bucket."""
        if self._url is None:
            return
        with self._bucket_errors():
            if not tf.io.gfile.isdir(f"{self._url}/{name}"):
                return
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            for file_name in tf.io.gfile.listdir(f"{self._url}/{name}"):
                # A folder's name ends with a slash, and the trainer has no folders here.
                if "/" not in file_name:
                    local = self.folder / name / file_name
                    tf.io.gfile.copy(f"{self._url}/{name}/{file_name}", str(local), overwrite=True)
                    self._sent[f"{name}/{file_name}"] = _state(local)

    def upload(self, *, last: bool = False) -> None:
        """Copy new and changed files, and remove deleted ones.

        A training is not ended because Cloud Storage is away: once outputs have arrived there, a failed upload is
        repeated with the next checkpoint. `last`: no other upload follows, so this one is repeated for ten minutes.
        Raises `BucketError`: Cloud Storage does not accept the first upload, or for ten minutes the last one.
        """
        if self._url is None:
            return
        until = time.monotonic() + _LAST_SECONDS
        while True:
            try:
                files = {str(path.relative_to(self.folder)): path for path in self.folder.rglob("*") if path.is_file()}
                with self._bucket_errors():
                    for name, path in sorted(files.items()):
                        state = _state(path)
                        if self._sent.get(name) != state:
                            tf.io.gfile.makedirs(f"{self._url}/{name}".rpartition("/")[0])
                            tf.io.gfile.copy(str(path), f"{self._url}/{name}", overwrite=True)
                            self._sent[name] = state
                    for name in self._sent.keys() - files.keys():
                        tf.io.gfile.remove(f"{self._url}/{name}")
                        del self._sent[name]
            except BucketError as error:
                gives_up = time.monotonic() >= until if last else not self._sent
                if gives_up:
                    raise
                print(f"{error}; the upload is repeated {'soon' if last else 'at the next checkpoint'}", flush=True)
            else:
                return
            if not last:
                return
            time.sleep(_PAUSE_SECONDS)

    @contextmanager
    def _bucket_errors(self) -> Iterator[None]:
        try:
            yield
        except tf.errors.OpError as error:
            raise BucketError(f"Cloud Storage at {self.location}: {error.message}") from error


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
