"""A flat list of paths, shown folder by folder, without reading what lies deeper."""

from collections.abc import Callable
from dataclasses import dataclass

from service.wire import ArtifactsPage, ArtifactView

_READ = 200
_PAST_EVERYTHING = "\U0010ffff"

Read = Callable[[str | None, int], ArtifactsPage]
"""The files of one folder and below it: after which path, at most how many."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file (`file` is set) or a folder; a folder's path ends with a slash."""

    name: str
    path: str
    file: ArtifactView | None


def entries(read: Read, folder: str, *, after: str | None, limit: int) -> tuple[list[Entry], str | None]:
    """What lies directly in a folder, in order of path, and where its next page goes on.

    Args:
        read: Reads files whose path begins with `folder`.
        folder: Empty, or a path that ends with a slash.
        after: From the page before.
        limit: Most entries.
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
        # Names may begin with the very last character: reading on is what always comes to an end.
        after = max(page.next, _past(last))


def _past(path: str) -> str:
    # What lies in a folder is passed over, however much it is.
    return path + _PAST_EVERYTHING if path.endswith("/") else path


@dataclass(frozen=True, slots=True)
class Crumb:
    """A folder on the way to a path."""

    name: str
    path: str


def crumbs(path: str) -> list[Crumb]:
    """The folders that lead to a path, outermost first; of a folder, itself included."""
    parts = path.split("/")[:-1]
    return [Crumb(part, "/".join(parts[: number + 1]) + "/") for number, part in enumerate(parts)]
