"""The reason why a worker does not start, kept in its row of the database, where the lists of workers show it."""

import os
import socket
from contextlib import closing, suppress

from core.db.database import Database
from core.errors import SettingsInvalid, StoreUnavailable
from core.jobs.scheduling import workers
from core.settings import Settings
from worker.service_link.link import ServiceLink


def report(name: str | None, why: str) -> None:
    """Report it through the service, if the worker has a link there, else in the database itself."""
    with suppress(Exception):  # neither may be had; whoever starts the worker is told in any case
        settings, worker = _readable_settings(), name or socket.gethostname()
        host = settings.worker.host or socket.gethostname()
        if settings.worker.service_url is not None:
            link = ServiceLink.of(settings.worker.service_url, settings)
            with suppress(StoreUnavailable):
                link.request("POST", "refusal", why.encode(), {"name": worker, "host": host})
                return
        with closing(Database.of(settings)) as database, database.write() as session:
            workers.refuse(session, worker, why, host=host)


def _readable_settings() -> Settings:
    """Return the settings, without those that are wrong: this process ends."""
    try:
        return Settings()
    except SettingsInvalid as error:
        for variable in error.variables:
            del os.environ[variable]
    return Settings()
