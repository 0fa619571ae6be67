"""`gradient-server reconcile`: adapts a restored database to the logs and artifacts that were restored with it."""

import argparse

from core.settings import Settings
from core.storage.artifacts.factory import open_artifacts
from core.storage.restored_attempts import adapt_jobs
from core.storage.stores import Stores
from gradient_server.commands.keys import open_database
from gradient_server.home import require_home


def run(_parsed: argparse.Namespace, settings: Settings) -> int:
    """Adapt the jobs that have run, or may have ended, since the database was backed up."""
    database = open_database(settings)
    require_home(settings, database)
    changed = adapt_jobs(Stores(settings=settings, database=database, artifacts=open_artifacts(settings)))
    database.close()
    print(f"{changed} job{'' if changed == 1 else 's'} changed, by their logs, artifacts and folders in attempts/.")
    return 0
