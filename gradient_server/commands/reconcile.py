"""`gradient-server reconcile`: adapts a restored database to the logs and artifacts that were restored with it."""

import argparse

from core.db.database import Database
from core.settings import Settings
from core.storage.artifacts.factory import open_artifacts
from core.storage.restored_attempts import adapt_jobs
from core.storage.stores import Stores
from gradient_server.home import require_home
from gradient_server.schema_upgrade import prepare_schema


def run(_parsed: argparse.Namespace, settings: Settings) -> int:
    """Adapt the jobs that have run, or may have ended, since the database was backed up."""
    database = Database.of(settings)
    prepare_schema(database)
    require_home(settings, database)
    changed = adapt_jobs(Stores(settings=settings, database=database, artifacts=open_artifacts(settings)))
    database.close()
    print(f"{changed} job{'' if changed == 1 else 's'} changed, by their logs, artifacts and folders in attempts/.")
    return 0
