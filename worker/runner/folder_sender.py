from __future__ import annotations

import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from worker.runner.stores import NETWORK_ERRORS, Refused, Store

_BLOCK_BYTES = 1024**2
_REASON_CHARACTERS = 1000


class FolderSender:
    """Sends what is new in a folder, or its `chosen` files; usable from any thread."""

    def __init__(self, store: Store, root: Path, prefix: str, chosen: Callable[[Path], bool] = lambda _: True) -> None:
        self.store = store
        self._root = root
        self._prefix = prefix
        self._chosen = chosen
        self._lock = threading.Lock()
        self._sent: dict[str, tuple[int, int]] = {}
        self._refused: dict[str, str] = {}
        self.until = float("inf")  # time at which to stop sending

    def fetch(self, without: str) -> None:
        """Fetch what an earlier attempt left, but none whose name begins with `without`; it need not be sent again."""
        for name in self.store.sizes(self._prefix):
            shown = name[len(self._prefix) :]
            if shown.endswith(("/", "/..")) or not shown or "../" in shown or (without and shown.startswith(without)):
                continue
            path = self._root / shown
            path.parent.mkdir(parents=True, exist_ok=True)
            with self.store.open(name) as answer, path.open("wb") as file:
                shutil.copyfileobj(answer, file)
            status = path.stat()
            self._sent[shown] = status.st_size, status.st_mtime_ns

    def send(self) -> None:
        """Send new and changed files, regular ones and links to them in the folder; remove deleted ones.

        Raises `OSError`: some were not sent; all others were, except those that the store refuses.
        """
        with self._lock:
            there, failed = set(), {}
            for folder, _, names in os.walk(self._root):
                for path in filter(self._chosen, (Path(folder, name) for name in names)):
                    shown = os.fsencode(path.relative_to(self._root)).decode(errors="replace")
                    there.add(shown)
                    try:
                        self._send(path, shown)
                    except FileNotFoundError:  # removed meanwhile
                        continue
                    except NETWORK_ERRORS as error:
                        failed[shown] = str(error)
            self._refused = {shown: why for shown, why in self._refused.items() if shown in there}
            for gone in self._sent.keys() - there:
                self._remove(gone)
            if failed:
                raise OSError(_describe(failed))

    def refused(self) -> str:
        """Describe the files that the store refuses; empty if there are none."""
        return f"refused by the bucket: {_describe(self._refused)}" if self._refused else ""

    def forget_refused(self) -> None:
        """Let the next `send` try refused files once more."""
        self._refused.clear()

    def _remove(self, shown: str) -> None:
        with suppress(Refused):  # it is kept, as by a retention policy: nothing is missing
            self.store.remove(self._prefix + shown)
        del self._sent[shown]

    def _send(self, path: Path, shown: str) -> None:
        if path.is_symlink():
            real = Path(os.path.realpath(path))
            path = real if real.is_relative_to(self._root.resolve()) else path
        status = path.lstat()
        state = status.st_size, status.st_mtime_ns
        if not stat.S_ISREG(status.st_mode) or self._sent.get(shown) == state or shown in self._refused:
            return
        self._check_time()
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            try:
                self.store.put(self._prefix + shown, self._blocks(file, status.st_size), status.st_size)
            except Refused as error:
                self._refused[shown] = str(error)
                return
        self._sent[shown] = state

    def _blocks(self, file: IO[bytes], size: int) -> Iterator[bytes]:
        """Read as many bytes of a file as were announced, even if it grows meanwhile."""
        while size:
            self._check_time()
            block = file.read(min(size, _BLOCK_BYTES))
            if not block:
                raise OSError("the file became shorter while it was being sent")
            size -= len(block)
            yield block

    def _check_time(self) -> None:
        if time.monotonic() >= self.until:
            raise OSError("there was not enough time for all of it")


def _describe(files: dict[str, str]) -> str:
    """Describe files and what is wrong with each, as far as a report has room."""
    reasons = "; ".join(f"{name!r}: {why}" for name, why in files.items())
    return f"{len(files)} of the artifacts: {reasons}"[:_REASON_CHARACTERS]
