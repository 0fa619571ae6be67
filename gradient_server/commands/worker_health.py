import argparse
import socket
import sys
from contextlib import closing
from importlib import import_module

from sqlalchemy import select

from core.db.database import Database, now
from core.db.models.jobs import Worker
from core.errors import StoreUnavailable
from core.jobs.scheduling.workers import ping_received_within
from core.notify.messages import worker_queue
from core.settings import Settings
from worker.celery.broker_watchdog import SILENT_SECONDS

MISSED_HEARTBEATS = 6  # number of missed heartbeats in a row after which a worker counts as silent

_MIN_UNHEARD_MESSAGES = 2
"""Number of messages waiting for the worker from which it counts as stuck; a single one may be in transit."""


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """Return 0 if the worker sends heartbeats and receives broker messages, else print why and return 1.

    Times are compared by the database's clock. An unreachable broker is only a warning, with exit code 0: a watchdog
    would otherwise restart every worker, which would not help.
    """
    name = parsed.name or socket.gethostname()
    silent = MISSED_HEARTBEATS * settings.worker.heartbeat_seconds
    try:
        with closing(Database.of(settings)) as database, database.read() as session:
            fresh = session.scalar(select(Worker.seen_at >= now(-silent)).where(Worker.name == name))
            receives = ping_received_within(session, name, SILENT_SECONDS)
    except StoreUnavailable as error:
        return _fail(error.message)
    if fresh is None:
        return _fail(f"No worker named {name!r} has ever reported. Choose a worker with --name.")
    if not fresh:
        return _fail(f"Worker {name!r} has been silent for more than {silent:.0f} s. Restart it.")
    if settings.queue.broker_url is None or receives is not False:
        return 0
    return _check_broker_messages(settings.queue.broker_url, name, SILENT_SECONDS)


def _check_broker_messages(broker_url: str, name: str, seconds: float) -> int:
    """Return 1 if messages wait for a worker that received none for `seconds`: then the broker is not the cause."""
    try:
        unheard = import_module("core.notify.celery_app").queue_length(broker_url, worker_queue(name))
    except OSError as error:
        why = f"the broker does not answer ({error}), so it finds jobs only by polling the database"
        print(f"warning: worker {name!r} receives no messages: {why}.", file=sys.stderr)
        return 0
    if unheard < _MIN_UNHEARD_MESSAGES:
        return 0
    return _fail(
        f"Worker {name!r} sends heartbeats but has received no message for more than {seconds:.0f} s. Restart it."
    )


def _fail(why: str) -> int:
    print(f"error: {why}", file=sys.stderr)
    return 1
