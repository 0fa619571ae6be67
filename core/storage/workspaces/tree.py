"""The folder tree that a manifest describes: splits names, detects clashes, rejects links that lead outside.

Names are checked before anything is written, and symbolic links only after every entry is known: whether a link stays
inside depends on the other links, in any order of entries.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from core.storage.workspaces.limits import WorkspaceLimits, invalid, shortened

Parts = tuple[str, ...]

_DRIVE = re.compile(r"^[A-Za-z]:")
_SEPARATORS = re.compile(r"[/\\]")

_MAX_LINK_CHAIN = 40  # Linux's own limit (ELOOP)


class EntryKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    SYMLINK = "symbolic link"


@dataclass(frozen=True, slots=True)
class Entry:
    name: str
    kind: EntryKind
    mode: int = 0o777  # Unix permission bits
    mtime_ns: int = 0  # modification time in nanoseconds since 1970
    target: str = ""  # where a link points


@dataclass(slots=True)
class _Folder:
    children: "dict[str, _Node]" = field(default_factory=dict)


@dataclass(slots=True)
class _Link:
    name: str
    parts: Parts
    target: str
    following: bool = False
    stack: "_Stack | None" = None


class _File:
    __slots__ = ()


_Node = _Folder | _Link | _File
_Stack = list[_Node | None]  # the nodes along a path, from the root down; None where no node of that name exists (yet)
_FILE = _File()


def _child(node: _Node | None, name: str) -> _Node | None:
    return node.children.get(name) if isinstance(node, _Folder) else None


def _split(text: str, what: str) -> list[str]:
    """Split `text` into path segments, without empty ones and dots; `..` is kept."""
    if text[:1] in ("/", "\\") or _DRIVE.match(text):
        raise invalid(f"{what} is an absolute path; pack the folder with relative paths")
    if not text.isprintable() and any(unicodedata.category(letter) == "Cc" for letter in text):
        raise invalid(f"{what} has a control character in it; rename the file and pack the folder again")
    return [segment for segment in _SEPARATORS.split(text) if segment not in ("", ".")]


def split_name(name: str, limits: WorkspaceLimits) -> Parts:
    """Validate an entry's name; returns its path below the workspace, empty for the workspace itself."""
    what = f"entry {shortened(name)}"
    parts = _split(name, what)
    if ".." in parts:
        raise invalid(f"{what} leaves the folder through '..'; pack the folder from inside it")
    if len(parts) > limits.max_depth:
        raise invalid(f"{what} lies more than {limits.max_depth} folders deep; flatten the folder or leave it out")
    sizes = [len(part.encode()) for part in parts]
    if any(size > limits.max_name_bytes for size in sizes):
        raise invalid(f"{what} has a name longer than {limits.max_name_bytes} bytes; shorten it")
    if sum(sizes) + len(sizes) > limits.max_path_bytes:
        raise invalid(f"{what} has a path longer than {limits.max_path_bytes} bytes; shorten it")
    return tuple(parts)


class EntryTree:
    """All entries seen so far, by path."""

    def __init__(self, limits: WorkspaceLimits) -> None:
        self._limits = limits
        self._root = _Folder()
        self._links: list[_Link] = []
        self._nodes = 0
        self.files = 0

    def add(self, entry: Entry) -> Parts:
        """Add an entry to the tree. Returns its path below the workspace."""
        parts = split_name(entry.name, self._limits)
        if not parts:
            if entry.kind is not EntryKind.FOLDER:
                raise invalid(f"entry {shortened(entry.name)} is a {entry.kind} without a name; pack the folder again")
            return parts
        parent = self._parent(parts, entry)
        there = parent.children.get(parts[-1])
        if entry.kind is EntryKind.FOLDER:
            self._folder_in(parent, parts[-1], entry)
        elif there is None:
            parent.children[parts[-1]] = self._leaf(parts, entry)
            self.files += 1
        elif isinstance(there, _Folder):
            raise invalid(f"entry {shortened(entry.name)} is both a {entry.kind} and a folder; pack the folder again")
        else:
            raise invalid(f"entry {shortened(entry.name)} is there twice; pack the folder again")
        return parts

    def symlinks(self) -> Iterator[tuple[Parts, str]]:
        """Check that all symbolic links stay inside, and return each with its target."""
        for link in self._links:
            self._follow(link)
        return ((link.parts, link.target) for link in self._links)

    def _count(self) -> None:
        self._nodes += 1
        self._limits.check_count(self._nodes)

    def _folder_in(self, parent: _Folder, part: str, entry: Entry) -> _Folder:
        there = parent.children.get(part)
        if isinstance(there, _Folder):
            return there
        if there is not None:
            what = "a symbolic link" if isinstance(there, _Link) else "a file"
            raise invalid(
                f"entry {shortened(entry.name)} needs a folder {shortened(part)}, but that is {what} in the same "
                "workspace; pack the folder again"
            )
        self._count()
        folder = _Folder()
        parent.children[part] = folder
        return folder

    def _parent(self, parts: Parts, entry: Entry) -> _Folder:
        folder = self._root
        for part in parts[:-1]:
            folder = self._folder_in(folder, part, entry)
        return folder

    def _leaf(self, parts: Parts, entry: Entry) -> _Node:
        self._count()
        if entry.kind is not EntryKind.SYMLINK:
            return _FILE
        if len(entry.target.encode()) > self._limits.max_path_bytes:
            raise invalid(f"entry {shortened(entry.name)} is a symbolic link to a path that is too long; leave it out")
        target = entry.target.replace("\\", "/")
        link = _Link(entry.name, parts, target)
        self._links.append(link)
        return link

    def _follow(self, link: _Link, chain: int = 0) -> "_Stack":
        """Resolve a symbolic link; cached, so that each link is walked once."""
        if link.stack is not None:
            return link.stack
        what = f"entry {shortened(link.name)} is a symbolic link to {shortened(link.target)}, which"
        if link.following or chain > _MAX_LINK_CHAIN:
            raise invalid(f"{what} forms a loop or leads through too many links; leave it out")
        segments = _split(link.target, what)
        # Bounds the work: long targets in 100,000 links would take minutes of CPU time.
        deepest = 2 * self._limits.max_depth
        if not link.target or len(segments) > deepest:
            raise invalid(f"{what} is empty or too deep; leave it out")
        link.following = True
        stack = self._folder_stack(link.parts[:-1])
        for segment in segments:
            stack = self._resolve_segment(stack, segment, chain)
            if not stack:
                raise invalid(f"{what} leaves the folder; replace the link by what it points to, or leave it out")
            if len(stack) > deepest:
                raise invalid(f"{what} leads too deep; leave it out")
        link.following = False
        link.stack = stack
        return stack

    def _resolve_segment(self, stack: "_Stack", segment: str, chain: int) -> "_Stack":
        if segment == "..":
            return stack[:-1]
        child = _child(stack[-1], segment)
        if isinstance(child, _Link):
            return self._follow(child, chain + 1)
        return [*stack, child]

    def _folder_stack(self, parts: Parts) -> "_Stack":
        stack: _Stack = [self._root]
        for part in parts:
            stack.append(_child(stack[-1], part))
        return stack
