import argparse
import socket
import sys
from contextlib import closing

from sqlalchemy import select

from core.db.database import Database, now
from core.db.models.jobs import Worker
from core.errors import StoreUnavailable
from core.settings import Settings

_MISSED_HEARTBEATS = 6  # number of missed heartbeats in a row after which a worker counts as silent


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """Return 0 if the worker sends heartbeats, by the database's clock, else print why and return 1."""
    name = parsed.name or socket.gethostname()
    silent = _MISSED_HEARTBEATS * settings.worker.heartbeat_seconds
    try:
        with closing(Database.of(settings)) as database, database.read() as session:
            fresh = session.scalar(select(Worker.seen_at >= now(-silent)).where(Worker.name == name))
    except StoreUnavailable as error:
        return _fail(error.message)
    if fresh is None:
        return _fail(f"No worker named {name!r} has ever reported. Choose a worker with --name.")
    if not fresh:
        return _fail(f"Worker {name!r} has sent no heartbeat for more than {silent:.0f} s. Restart it.")
    return 0


def _fail(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 1
