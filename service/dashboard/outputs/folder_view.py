"""Folder view of a flat list of paths, without reading the contents of subfolders."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from service.schemas.artifacts import ArtifactsPage, ArtifactView

_PAGE_FILES = 200
_LAST_CHARACTER = "\U0010ffff"

ReadPage = Callable[[str | None, int], ArtifactsPage]
"""Reads a page of the files in and below a folder, given the path to start after and the largest number of files."""


Order = Literal["name", "-name", "size", "-size", "modified", "-modified"]
"""An order of entries; descending with a minus."""


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """A file (`file` is set) or a folder; a folder's path ends with a slash."""

    name: str  # its name, or its path below the folder if it was found in one
    path: str
    file: ArtifactView | None
    files: int | None = None  # number of files in and below the folder; None: not counted
    size: int | None = None  # bytes of the file, or of those files


def list_entries(read: ReadPage, folder: str, *, after: str | None, limit: int) -> tuple[list[FolderEntry], str | None]:
    """Return the direct entries of a folder, ordered by path, and the cursor of the next page.

    Args:
        read: Reads files whose path begins with `folder`.
        folder: Empty, or a path that ends with a slash.
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
    return path + _LAST_CHARACTER if path.endswith("/") else path  # for a folder, skip everything in it


def summarize_entries(files: Iterable[ArtifactView], folder: str, *, find: str, order: Order) -> list[FolderEntry]:
    """Return the direct entries of a folder with their sizes, folders first; with `find`, the files that match it.

    Args:
        folder: Empty, or a path that ends with a slash.
        find: A part of the files' paths below the folder, in upper or lower case; empty: no search.
    """
    counted: dict[str, tuple[int, int]] = {}
    found: list[FolderEntry] = []
    for file in files:
        if not file.path.startswith(folder):
            continue
        below = file.path[len(folder) :]
        head, slash, _ = below.partition("/")
        if find:
            if find.lower() in below.lower():
                found.append(FolderEntry(below, file.path, file, None, file.size))
        elif slash:
            number, size = counted.get(head, (0, 0))
            counted[head] = (number + 1, size + file.size)
        else:
            found.append(FolderEntry(head, file.path, file, None, file.size))
    folders = [FolderEntry(name, f"{folder}{name}/", None, *of) for name, of in counted.items()]
    return [*_ordered(folders, order), *_ordered(found, order)]


def _ordered(entries: list[FolderEntry], order: Order) -> list[FolderEntry]:
    keys: dict[str, Callable[[FolderEntry], object]] = {
        "name": lambda entry: entry.name,
        "size": lambda entry: (entry.size or 0, entry.name),
        "modified": lambda entry: (entry.file.modified.timestamp() if entry.file else 0.0, entry.name),
    }
    return sorted(entries, key=keys[order.lstrip("-")], reverse=order.startswith("-"))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Crumb:
    name: str
    path: str


def crumbs(path: str) -> list[Crumb]:
    """Return the folders of a path, outermost first; a folder's path includes the folder itself."""
    parts = path.split("/")[:-1]
    return [Crumb(part, "/".join(parts[: number + 1]) + "/") for number, part in enumerate(parts)]
