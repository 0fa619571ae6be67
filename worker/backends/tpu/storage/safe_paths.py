"""Maps object names to file paths. Names in a bucket can be anything: none of them is trusted."""

import os
from collections.abc import Iterable
from typing import NamedTuple

from google.cloud import storage

from core.storage.artifacts.paths import MAX_DEPTH
from core.storage.artifacts.scan import Skipped

_NAME_BYTES = 255


class ObjectPlan(NamedTuple):
    """Objects to download. `wanted`: relative path to the object that becomes that file; ordered by path."""

    wanted: dict[str, storage.Blob]
    skipped: list[Skipped]


def plan_objects(blobs: Iterable[storage.Blob], prefix: str) -> ObjectPlan:
    """Split objects into those that can be files below a folder, and those that cannot."""
    wanted: dict[str, storage.Blob] = {}
    skipped: list[Skipped] = []
    for blob in blobs:
        path = blob.name.removeprefix(prefix)
        if not path or (path.endswith("/") and not blob.size):
            continue  # an empty folder marker
        why = _reject_reason(path)
        if why is None:
            wanted[path] = blob
        else:
            skipped.append(Skipped(path, why))
    folders = {path[:end] for path in wanted for end in _slash_positions(path)}
    for path in sorted(wanted.keys() & folders):
        # The folder may hold many objects: it wins over the single one.
        skipped.append(Skipped(path, "other objects have it as their folder"))
        del wanted[path]
    return ObjectPlan(dict(sorted(wanted.items())), skipped)


def _reject_reason(path: str) -> str | None:
    parts = path.split("/")
    reasons = (
        (path.startswith("/"), "its name begins with a slash"),
        (path.endswith("/"), "its name ends with a slash, so that it would be a folder"),
        ("" in parts, "its name has two slashes in a row"),
        (not {".", ".."}.isdisjoint(parts), "its name leads out of its folder"),
        ("\0" in path, "its name holds a NUL"),
        (any(len(os.fsencode(part)) > _NAME_BYTES for part in parts), f"a part of it is over {_NAME_BYTES} bytes long"),
        (len(parts) > MAX_DEPTH, f"it lies deeper than {MAX_DEPTH} folders"),
    )
    return next((why for true, why in reasons if true), None)


def _slash_positions(path: str) -> list[int]:
    return [place for place, letter in enumerate(path) if letter == "/"]
