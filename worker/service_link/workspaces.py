"""Workspaces of jobs on a host that shares only the network with its service."""

import time
from pathlib import Path
from typing import Any, BinaryIO, cast

from core.errors import StoreUnavailable
from core.storage.workspaces import StoredWorkspace, WorkspaceStore
from core.storage.workspaces.limits import WorkspaceLimits
from core.storage.workspaces.stored_files import receive
from core.system.untrusted_folders import move
from worker.service_link.link import ServiceLink

_KEPT_BYTES = 20 * 10**9
_IN_USE_SECONDS = 3600.0


class ServiceWorkspaces(WorkspaceStore):
    """Workspaces that this host has fetched from the service; the least recently used are deleted at a limit."""

    def __init__(self, root: Path, link: ServiceLink) -> None:
        super().__init__(root)
        self._link = link

    def extract(self, sha256: str, destination: Path, limits: WorkspaceLimits) -> None:
        if not self.mark_used(sha256):
            self._fetch(sha256)
            self._drop_least_used()
        super().extract(sha256, destination, limits)

    def _fetch(self, sha256: str) -> None:
        facts: dict[str, Any] = self._link.read_json("GET", f"workspaces/{sha256}")
        stored = StoredWorkspace(**facts)
        for pack, size in stored.packs.items():
            if not self._packs.has(pack, size):
                self._fetch_part(sha256, pack, size, self.pack_path(pack))
        self._write_metadata(stored)
        self._fetch_part(sha256, sha256, stored.size, self.path(sha256))

    def _fetch_part(self, sha256: str, part: str, size: int, target: Path) -> None:
        with (
            self._link.open_file(f"workspaces/{sha256}/parts/{part}") as answer,
            receive(cast("BinaryIO", answer), self._incoming, size) as received,
        ):
            if received.sha256 != part:
                raise StoreUnavailable(f"{part} arrived with the sha256 {received.sha256}; it is fetched again.")
            target.parent.mkdir(parents=True, exist_ok=True)
            move(received.path, target)

    def _drop_least_used(self) -> None:
        before = time.time() - _IN_USE_SECONDS
        kept = sorted(self.stored(), key=lambda workspace: workspace.used_at)
        packs = {pack.sha256: pack.size for pack in self._packs.stored()}
        total = sum(workspace.size for workspace in kept) + sum(packs.values())
        for workspace in kept:
            if total <= _KEPT_BYTES:
                return
            if self.discard(workspace.sha256, unused_since=before):
                total -= workspace.size
                for pack in self.unused_packs(unused_since=before):
                    total -= pack.size * self.discard_pack(pack.sha256, unused_since=before)
