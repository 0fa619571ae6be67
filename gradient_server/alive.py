"""`gradient-server alive`: whether a worker's heart still beats, for health checks and watchdogs."""

import socket
import sys

from sqlalchemy import select

from core.db import Database, now
from core.errors import StoreUnavailable
from core.jobs.models import Worker
from core.settings import Settings

SILENT_BEATS = 6
"""So many heartbeats missed in a row are no accident."""


def run(settings: Settings, name: str | None) -> int:
    """0 if the worker was heard lately, else 1, with a line that says why. The database's clock decides."""
    name = name or socket.gethostname()
    silent = SILENT_BEATS * settings.worker.heartbeat_seconds
    database = Database(settings.database_url)
    try:
        with database.read() as session:
            fresh = session.scalar(select(Worker.seen_at >= now(-silent)).where(Worker.name == name))
    except StoreUnavailable as error:
        return _no(error.message)
    finally:
        database.close()
    if fresh is None:
        return _no(f"No worker named {name!r} has ever reported. Say which with --name.")
    return 0 if fresh else _no(f"Worker {name!r} has been silent for more than {silent:.0f} s. Restart it.")


def _no(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 1
