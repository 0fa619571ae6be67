"""A random mark in GRADIENT_HOME and in the database, by which a home that is not shared or not mounted is noticed.

Jobs would run in such a home as in any other, and their logs and artifacts would be found nowhere else.
"""

import shlex
import socket
from contextlib import suppress
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

_NAME = "home-mark"  # name of the file, and of the value in the database
_EXPECTED = select(InstallationValue.value).where(InstallationValue.name == _NAME)


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
            own = _mark_home(settings.root / _NAME)
            with database.write() as session:
                made = insert_ignore(session.get_bind().dialect.name, InstallationValue)
                session.execute(made.values(name=_NAME, value=own))
    # Not `read`: its connection would return to the pool asking for READ WRITE, whatever the server's default.
    with database.engine.connect() as connection, Session(connection) as session:
        problem = describe_wrong_home(settings, session)
    if problem is not None:
        raise WrongHome(problem)


def describe_wrong_home(settings: Settings, session: Session) -> str | None:
    """Return why GRADIENT_HOME is not the one that the database belongs to, and what to do; None if it is."""
    if _is_in_home(settings):
        return None
    root, expected, found = settings.root, session.scalar(_EXPECTED), _read(settings.root / _NAME)
    if expected is None:
        return "The database belongs to no GRADIENT_HOME yet: run `gradient-server migrate` on the API's host."
    if found == expected:
        return None
    own = f"has the mark {found}" if found else "has no mark"
    return (
        f"The folder {root} of this host ({socket.gethostname()}) {own}, "
        f"but the database belongs to the GRADIENT_HOME with the mark {expected}: mount that folder here or set "
        f"GRADIENT_HOME to it, or, if {root} has replaced it, run `echo {shlex.quote(expected)} "
        f">{shlex.quote(str(root / _NAME))}`."
    )


def _is_in_home(settings: Settings) -> bool:
    """Return whether the database is a file in GRADIENT_HOME: then they cannot be told apart."""
    return settings.sqlite_file is not None and settings.sqlite_file.is_relative_to(settings.root)


def _mark_home(path: Path) -> str:
    """Return the mark of a home; one without a mark gets one, with this host's name for people."""
    with suppress(FileExistsError):
        write_atomically(path, f"{new_id('h')}@{socket.gethostname()}\n".encode(), replace=False)
    return path.read_text("utf-8").strip()


def _read(path: Path) -> str | None:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return None
