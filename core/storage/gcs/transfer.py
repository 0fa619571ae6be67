from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from google.api_core.exceptions import NotFound
from google.cloud import storage

from core.storage.gcs.client import translate_errors

PARALLEL_FILES = 8  # files that are uploaded or downloaded at once; each may hold a part of an upload in memory


def remove_all(blobs: Iterable[storage.Blob], parallel: int) -> None:
    """Remove objects; missing ones are not an error."""
    with translate_errors("removing"), ThreadPoolExecutor(parallel, thread_name_prefix="remove") as pool:
        for _ in pool.map(_remove, blobs):
            pass


def _remove(blob: storage.Blob) -> None:
    with suppress(NotFound):
        blob.delete()
