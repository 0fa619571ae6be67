"""GRADIENT_HOME: its mark, and its lock.

A random mark in it and in the database shows a home that is not shared or not mounted. Jobs would run in such a home as
in any other, and their logs and artifacts would be found nowhere else. The lock allows one `gradient-server up` in a
home, and none beside an API of its own.
"""

import fcntl
import os
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.database import Database
from core.errors import GradientError
from core.ids import new_id
from core.jobs.cloud_resources import InstallationValue
from core.jobs.guarded_updates import insert_ignore
from core.settings import Settings
from core.system.filesystem import write_atomically
from gradient_server.startup_wait import wait_until_ready

_NAME = "home-mark"  # name of the file, and of the value in the database
_EXPECTED = select(InstallationValue.value).where(InstallationValue.name == _NAME)
_LOCK = "server.lock"
_WAIT_SECONDS = 2.0  # a server that was just killed may have processes that end in a moment
_PAUSE_SECONDS = 0.1


class WrongHome(GradientError):
    """GRADIENT_HOME is not the one that the database belongs to."""


def require_home(settings: Settings, database: Database, *, mark: bool = False) -> None:
    """Require that GRADIENT_HOME is the one that the database belongs to.

    `mark`: mark both, if the database belongs to none yet. Raises `WrongHome`: it is another one.
    """
    if mark and not _is_in_home(settings):
        with database.engine.connect() as connection:
            marked = connection.scalar(_EXPECTED) is not None
        if not marked:
            home_mark = _mark_home(settings.root / _NAME)
            with database.write() as session:
                made = insert_ignore(session.get_bind().dialect.name, InstallationValue)
                session.execute(made.values(name=_NAME, value=home_mark))
    # Not `read`: its connection would return to the pool asking for READ WRITE, whatever the server's default.
    with database.engine.connect() as connection, Session(connection) as session:
        problem = describe_wrong_home(settings, session)
    if problem is not None:
        raise WrongHome(problem)


def describe_wrong_home(settings: Settings, session: Session) -> str | None:
    """Return why GRADIENT_HOME is not the one that the database belongs to, and what to do; None if it is."""
    if _is_in_home(settings):
        return None
    root, expected, present = settings.root, session.scalar(_EXPECTED), _read(settings.root / _NAME)
    if expected is None:
        return "The database does not belong to a GRADIENT_HOME yet: run `gradient-server migrate` on the API's host."
    if present == expected:
        return None
    state = f"has the mark {present}" if present else "has no mark"
    return (
        f"The folder {root} of this host ({socket.gethostname()}) {state}, but the database belongs to the "
        f"GRADIENT_HOME with the mark {expected}. Mount that folder here or set GRADIENT_HOME to it; if this host "
        f"shares only the network, let it join (gradient-server join); or, if {root} has replaced that folder, run "
        f"`echo {shlex.quote(expected)} >{shlex.quote(str(root / _NAME))}`."
    )


def _is_in_home(settings: Settings) -> bool:
    """Return whether the database is a file in GRADIENT_HOME: then they cannot be told apart."""
    return settings.sqlite_file is not None and settings.sqlite_file.is_relative_to(settings.root)


def _mark_home(path: Path) -> str:
    """Return the mark of a home; one without a mark gets one, with this host's name for people."""
    with suppress(FileExistsError):
        write_atomically(path, f"{new_id('h')}@{socket.gethostname()}\n".encode(), replace=False)
    return path.read_text("utf-8", "replace").strip()


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None


class ServerRuns(GradientError):
    """The folder of all data belongs to a server that runs."""


@contextmanager
def locked_home(settings: Settings, *, shared: bool) -> Iterator[None]:
    """Lock GRADIENT_HOME during the block.

    `shared`: others that share it may lock it, too: several APIs, but no `up`.
    """
    path = _lock_file(settings)
    descriptor = wait_until_ready(settings, lambda: os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    try:
        if not _lock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            where = path.read_text("utf-8", "replace").strip()
            raise ServerRuns(
                f"A server is already running in {settings.root}{where and f', at {where}'}. Nothing was changed: "
                "use that server, or stop it first. A second server can run alongside if GRADIENT_HOME is another "
                "folder."
            )
        yield
    finally:
        os.close(descriptor)


def publish_address(settings: Settings) -> None:
    """Record the address of the server that has locked GRADIENT_HOME, for those that find it locked."""
    with suppress(OSError):  # a full disk
        _lock_file(settings).write_text(f"{settings.public_url}\n", "utf-8")


def _lock_file(settings: Settings) -> Path:
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
