"""Folder view of a flat list of paths, without reading the contents of subfolders."""

from collections.abc import Callable
from dataclasses import dataclass

from service.schemas.jobs import ArtifactsPage, ArtifactView

_PAGE_FILES = 200
_LAST_CHARACTER = "\U0010ffff"

ReadPage = Callable[[str | None, int], ArtifactsPage]
"""Reads a page of the files in and below a folder, given the path to start after and the largest number of files."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file (`file` is set) or a folder; a folder's path ends with a slash."""

    name: str
    path: str
    file: ArtifactView | None


def list_entries(read: ReadPage, folder: str, *, after: str | None, limit: int) -> tuple[list[FolderEntry], str | None]:
    """Return the direct entries of a folder, ordered by path, and the cursor of the next page.

    Args:
        read: Reads files whose path begins with `folder`.
        folder: Empty, or a path that ends with a slash.
        after: The cursor returned with the page before.
        limit: Largest number of entries.
    """
    found: list[FolderEntry] = []
    last = (after or "").removesuffix(_LAST_CHARACTER)
    while True:
        page = read(after, _PAGE_FILES)
        for file in page.files:
            head, slash, _ = file.path[len(folder) :].partition("/")
            path = f"{folder}{head}{slash}"
            if path == last:
                continue
            if len(found) == limit:
                return found, _cursor_after(last)
            found.append(FolderEntry(head, path, None if slash else file))
            last = path
        if page.next is None:
            return found, None
        # Names may begin with the very last character: the larger of both cursors always makes progress.
        after = max(page.next, _cursor_after(last))


def _cursor_after(path: str) -> str:
    # For a folder, skip everything in it.
    return path + _LAST_CHARACTER if path.endswith("/") else path


@dataclass(frozen=True, slots=True)
class Crumb:
    """A folder in a path."""

    name: str
    path: str


def crumbs(path: str) -> list[Crumb]:
    """Return the folders of a path, outermost first; a folder's path includes the folder itself."""
    parts = path.split("/")[:-1]
    return [Crumb(part, "/".join(parts[: number + 1]) + "/") for number, part in enumerate(parts)]
