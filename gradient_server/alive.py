"""`gradient-server alive`: whether a worker's heart still beats, for health checks and watchdogs."""

import socket
import sys
from importlib import import_module

from sqlalchemy import select

from core.db import Database, now
from core.errors import StoreUnavailable
from core.jobs.hearing import heard_lately
from core.jobs.models import Worker
from core.rings import host_queue
from core.settings import Settings

SILENT_BEATS = 6
"""So many heartbeats missed in a row are no accident."""

_UNHEARD = 2
"""One message may be on its way."""


def run(settings: Settings, name: str | None) -> int:
    """0 if the worker was heard lately and hears, else 1, with a line that says why. The database's clock decides.

    A broker that is away is a warning, and 0: whoever restarts workers by this answer would restart all of them, none
    of which is at fault, and find them no better.
    """
    name = name or socket.gethostname()
    silent = SILENT_BEATS * settings.worker.heartbeat_seconds
    deaf = settings.queue.deaf_seconds
    database = Database(settings.database_url)
    try:
        with database.read() as session:
            fresh = session.scalar(select(Worker.seen_at >= now(-silent)).where(Worker.name == name))
            hears = heard_lately(session, name, deaf)
    except StoreUnavailable as error:
        return _no(error.message)
    finally:
        database.close()
    if fresh is None:
        return _no(f"No worker named {name!r} has ever reported. Say which with --name.")
    if not fresh:
        return _no(f"Worker {name!r} has been silent for more than {silent:.0f} s. Restart it.")
    if settings.queue.broker_url is None or not deaf or hears is not False:
        return 0
    return _deaf(settings.queue.broker_url, name, deaf)


def _deaf(broker_url: str, name: str, seconds: float) -> int:
    """Of a worker that heard nothing for so long: 1 if messages wait for it, for then it is not the broker's fault."""
    try:
        unheard = import_module("core.queue").waiting(broker_url, host_queue(name))
    except OSError as error:
        why = f"the broker does not answer ({error}), so it finds its work by looking"
        print(f"warning: worker {name!r} hears no messages: {why}.", file=sys.stderr)
        return 0
    if unheard < _UNHEARD:
        return 0
    return _no(f"Worker {name!r} beats but has heard no message for more than {seconds:.0f} s. Restart it.")


def _no(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 1
