"""Digests of packed folders, so that an unchanged folder is not packed again."""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress

from gradient_cli import config
from gradient_cli.errors import ClientError
from gradient_cli.workspace.archive import Archive

TYPE_CHECKING = False  # the name type checkers know; importing typing for it would slow every start
if TYPE_CHECKING:
    from gradient_cli.workspace.archive import WorkspaceFolder

_MAX_FOLDERS = 200
# A file changed this shortly before the scan may change again without a new time: clocks of file systems are coarse.
_RACY_NS = 2_000_000_000
# Changed whenever the same folder would give another archive.
_FORMAT = b"1"


def find(folder: WorkspaceFolder) -> Archive | None:
    """Return the archive of this folder, without its file, if it was packed before and has not changed since."""
    with suppress(ClientError):  # a damaged cache only costs time
        entry = config.read_json(_path()).get(folder.root)
        if isinstance(entry, dict) and entry.get("listing") == _listing(folder):
            sha256, size = entry.get("sha256"), entry.get("size")
            if isinstance(sha256, str) and isinstance(size, int):
                return Archive("", sha256, size, temporary=False)
    return None


def remember(folder: WorkspaceFolder, archive: Archive) -> None:
    """Store the digest of a folder's archive, unless a file changed just before the scan."""
    newest = max((max(entry.version[1:]) for entry in folder.entries), default=0)
    if newest > folder.scanned_at - _RACY_NS:
        return
    try:
        known = config.read_json(_path())
    except ClientError:
        known = {}
    known.pop(folder.root, None)
    known[folder.root] = {"listing": _listing(folder), "sha256": archive.sha256, "size": archive.size}
    with suppress(OSError):
        config.write_json(_path(), dict(list(known.items())[-_MAX_FOLDERS:]))


def _path() -> str:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "gradient", "packed.json")


def _listing(folder: WorkspaceFolder) -> str:
    """Return the digest of all that the archive's bytes depend on, with the versions of files for their contents."""
    digest = hashlib.sha256(_FORMAT)
    for entry in folder.entries:
        facts = (entry.path, entry.kind, entry.mode, entry.size, entry.target, entry.version)
        digest.update(repr(facts).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
