"""Folder view of a flat list of paths, without reading the contents of subfolders."""

from collections.abc import Callable
from dataclasses import dataclass

from service.schemas.jobs import ArtifactsPage, ArtifactView

_READ = 200
_PAST_EVERYTHING = "\U0010ffff"

Read = Callable[[str | None, int], ArtifactsPage]
"""Reads a page of the files in and below a folder, given the path to start after and the largest number of files."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file (`file` is set) or a folder; a folder's path ends with a slash."""

    name: str
    path: str
    file: ArtifactView | None


def entries(read: Read, folder: str, *, after: str | None, limit: int) -> tuple[list[Entry], str | None]:
    """Return the direct entries of a folder, ordered by path, and the cursor of the next page.

    Args:
        read: Reads files whose path begins with `folder`.
        folder: Empty, or a path that ends with a slash.
        after: The cursor returned with the page before.
        limit: Largest number of entries.
    """
    found: list[Entry] = []
    last = (after or "").removesuffix(_PAST_EVERYTHING)
    while True:
        page = read(after, _READ)
        for file in page.files:
            head, slash, _ = file.path[len(folder) :].partition("/")
            path = f"{folder}{head}{slash}"
            if path == last:
                continue
            if len(found) == limit:
                return found, _past(last)
            found.append(Entry(head, path, None if slash else file))
            last = path
        if page.next is None:
            return found, None
        # Names may begin with the very last character: the larger of both cursors always makes progress.
        after = max(page.next, _past(last))


def _past(path: str) -> str:
    # For a folder, skip everything in it.
    return path + _PAST_EVERYTHING if path.endswith("/") else path


@dataclass(frozen=True, slots=True)
class Crumb:
    """A folder in a path."""

    name: str
    path: str


def crumbs(path: str) -> list[Crumb]:
    """Return the folders of a path, outermost first; a folder's path includes the folder itself."""
    parts = path.split("/")[:-1]
    return [Crumb(part, "/".join(parts[: number + 1]) + "/") for number, part in enumerate(parts)]
