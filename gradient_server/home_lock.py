"""At most one `gradient-server up` in a GRADIENT_HOME, and none beside an API of its own."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from core.errors import GradientError
from core.settings import Settings
from gradient_server.startup_wait import wait_until_ready

_LOCK = "server.lock"
_WAIT_SECONDS = 2.0  # a server that was just killed may have processes that end in a moment
_PAUSE_SECONDS = 0.1


class ServerRuns(GradientError):
    """The folder of all data belongs to a server that runs."""


@contextmanager
def locked_home(settings: Settings, *, shared: bool) -> Iterator[None]:
    """Lock GRADIENT_HOME during the block.

    `shared`: others that share it may lock it, too: several APIs, but no `up`.
    """
    path = _path(settings)
    descriptor = wait_until_ready(settings.root, lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        if not _lock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            where = path.read_text("utf-8", "replace").strip()
            raise ServerRuns(
                f"A server runs in {settings.root} already{where and f', at {where}'}. Nothing was changed: use that "
                "one, or stop it first. With another folder as GRADIENT_HOME, a second one can run beside it."
            )
        yield
    finally:
        os.close(descriptor)


def publish_address(settings: Settings) -> None:
    """Record the address of the server that has locked GRADIENT_HOME, for those that find it locked."""
    with suppress(OSError):  # a full disk
        _path(settings).write_text(f"{settings.public_url}\n", "utf-8")


def _path(settings: Settings) -> Path:
    return settings.root / _LOCK


def _lock(descriptor: int, kind: int) -> bool:
    until = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(_PAUSE_SECONDS)
        except OSError:  # a network file system without locks
            return True
        else:
            return True
