"""Objects that hold a job's files: their names, their headers, their removal."""

import hashlib
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import PurePosixPath
from urllib.parse import quote

from obstore.store import AzureStore

from core.storage.buckets.client import Bucket, translate_errors

_PARALLEL = 8
_MAX_NAME_BYTES = 1024
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def object_name(bucket: Bucket, base: str, path: str) -> str:
    """Return the object name of a public path: the path below `base`, unless no object can have that name."""
    name = f"{base}files/{path}"
    # obstore signs the encoded name, and Azure's servers check the signature of the decoded one.
    unsigned = isinstance(bucket, AzureStore) and quote(path) != path
    if unsigned or len(name.encode()) > _MAX_NAME_BYTES or _CONTROL.search(name):
        return f"{base}long/{hashlib.sha256(path.encode()).hexdigest()}"
    return name


def attachment(path: str) -> dict[str, str]:
    """Return the headers with which a bucket serves a job's file: saved under its name, never run by a browser."""
    name = quote(PurePosixPath(path).name, safe="")
    return {"Content-Type": "application/octet-stream", "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}


def remove_all(bucket: Bucket, names: Sequence[str]) -> None:
    """Remove objects; missing ones are not an error."""

    def remove(name: str) -> None:
        with suppress(FileNotFoundError):
            bucket.delete(name)

    with translate_errors("removing"), ThreadPoolExecutor(_PARALLEL, thread_name_prefix="remove") as pool:
        for _ in pool.map(remove, names):
            pass
