"""Symbolic links in a folder that a job writes to: one that stays inside it stands for what it leads to.

Links are followed in the list of what a scan found, never on the disk, where the job may change them meanwhile.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress

from core.storage.artifacts.scan import ArtifactLimits, FolderScan, SkipList
from core.system.untrusted_folders import MAX_DEPTH

_MAX_HOPS = 40  # links on the way to one file, as in Linux
_MAX_STEPS = 500_000  # names looked at for all links of a folder: links to folders of links multiply
_OUTSIDE = "a symbolic link to a target outside the folder is not followed"
_MISSING = "a symbolic link to something that does not exist or is not kept"
_LOOP = "a symbolic link to itself, or to a folder around it"


class _TooManySteps(Exception):
    """The links of the folder are not followed any further."""


class _Unfollowed(Exception):
    """A link leads to nothing that is kept; the message says why."""


def follow_links(
    scan: FolderScan, names: Sequence[str], skips: SkipList, limits: ArtifactLimits | None = None
) -> dict[str, str]:
    """Return the path of each file that links add, and of the file that it is.

    Args:
        scan: The folder's files that are kept, its folders and its links.
        names: Paths by which the job knows the folder, without a slash at the end: a link may be absolute.
        skips: Gets the links that lead elsewhere, and what exceeds a limit.
    """
    return _Links(scan, names, skips, limits or ArtifactLimits()).follow() if scan.links else {}


class _Links:
    def __init__(self, scan: FolderScan, names: Sequence[str], skips: SkipList, limits: ArtifactLimits) -> None:
        self._found = scan
        self._names = names
        self._skips = skips
        self._limits = limits
        self._steps_left = _MAX_STEPS
        self._files_left = limits.max_files - len(scan.files)
        self._bytes_left = limits.max_bytes - sum(seen.size for seen in scan.files.values())
        self._folders = {"", *scan.folders}
        self._inside: dict[str, list[str]] = defaultdict(list)
        for path in sorted([*scan.files, *scan.folders, *scan.links]):
            folder, _, name = path.rpartition("/")
            self._inside[folder].append(name)

    def follow(self) -> dict[str, str]:
        added: dict[str, str] = {}
        with suppress(_TooManySteps):
            self._add(added)
        return added

    def _add(self, added: dict[str, str]) -> None:
        for link in sorted(self._found.links):
            for path, real in self._files(link, link, ()):
                size = self._found.files[real].size
                if not self._files_left:
                    self._skips.add(link, f"over the limit of {self._limits.max_files:,} files", lost=True)
                    return
                if size > self._bytes_left:
                    why = f"over the limit of {self._limits.max_bytes:,} bytes for all artifacts"
                    self._skips.add(path, why, lost=True)
                    continue
                self._files_left -= 1
                self._bytes_left -= size
                added[path] = real

    def _step(self) -> None:
        self._steps_left -= 1
        if self._steps_left < 0:
            self._skips.add("…", f"symbolic links lead to more than {_MAX_STEPS:,} names", lost=True)
            raise _TooManySteps

    def _files(self, path: str, link: str, around: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        """Yield the files that a link adds, each with the real one."""
        try:
            real = self._resolve(link)
        except _Unfollowed as error:
            self._skips.add(path, str(error))
            return
        if real in self._found.files:
            yield path, real
        elif any(_is_within(within, real) for within in (link, *around)) or path.count("/") >= MAX_DEPTH:
            self._skips.add(path, _LOOP)
        else:
            yield from self._files_below(path, real, (*around, link, real))

    def _files_below(self, path: str, folder: str, around: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        for name in self._inside[folder]:
            self._step()
            here, real = f"{path}/{name}", f"{folder}/{name}" if folder else name
            if real in self._found.files:
                yield here, real
            elif real in self._found.links:
                yield from self._files(here, real, around)
            elif here.count("/") < MAX_DEPTH:
                yield from self._files_below(here, real, around)

    def _resolve(self, link: str) -> str:
        at, rest, hops = "", link.split("/")[::-1], 0
        while rest:
            self._step()
            name = rest.pop()
            if name in {"", "."}:
                continue
            if name == "..":
                if not at:
                    raise _Unfollowed(_OUTSIDE)
                at = at.rpartition("/")[0]
                continue
            here = f"{at}/{name}" if at else name
            if here in self._found.links:
                hops += 1
                if hops > _MAX_HOPS:
                    raise _Unfollowed(_LOOP)
                target, from_top = self._relative(self._found.links[here])
                at = "" if from_top else at
                rest += target.split("/")[::-1]
            elif here in self._folders or (here in self._found.files and not rest):
                at = here
            else:
                raise _Unfollowed(_MISSING)
        return at

    def _relative(self, target: str) -> tuple[str, bool]:
        """Return a link's target, and whether it begins at the folder and not where the link is."""
        if not target.startswith("/"):
            return target, False
        for name in self._names:
            if target == name or target.startswith(name + "/"):
                return target[len(name) :], True
        raise _Unfollowed(_OUTSIDE)


def _is_within(path: str, folder: str) -> bool:
    return not folder or path == folder or path.startswith(folder + "/")
