import argparse
import json
from contextlib import closing
from datetime import datetime

from core.db.database import Database
from core.db.models.credentials import ApiKey
from core.formatting import iso_time
from core.jobs.costs import budgets
from core.security import api_keys
from core.security.key_rights import KeyRights
from core.settings import Settings
from gradient_server.schema_upgrade import prepare_schema


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    verbs = {"create": _create, "list": _list, "revoke": _revoke, "budget": _set_budget}
    with closing(open_database(settings)) as database:
        verbs[parsed.verb](parsed, database)
    return 0


def open_database(settings: Settings) -> Database:
    """Open the database for a short command; only SQLite's schema is migrated without being asked."""
    database = Database.of(settings)
    prepare_schema(database)
    return database


def _create(parsed: argparse.Namespace, database: Database) -> None:
    with database.write() as session:
        rights = KeyRights(scope=parsed.scope)
        key, secret = api_keys.create(session, parsed.name, days=parsed.days, rights=rights)
    if parsed.json:
        print(json.dumps({"id": key.id, "name": key.name, "apiKey": secret} | _describe_times(key, "expiresAt")))
        return
    print(secret)
    until = f"It works until {format_time(key.expires_at)} UTC." if key.expires_at else "It never expires (see --days)."
    print(
        f"Key {key.id} for {key.name!r}. It is shown only once, so store it safely. Use it with `gradient-cli "
        f"login`. {until}"
    )


def _list(parsed: argparse.Namespace, database: Database) -> None:
    with database.read() as session:
        rows = api_keys.list_keys(session)
    if parsed.json:
        print(json.dumps([_view(row) for row in rows], indent=2))
        return
    if not rows:
        print("No keys yet. `gradient-server keys create NAME` creates one.")
        return
    print(f"{'ID':10} {'CREATED':20} {'LAST USED':20} {'EXPIRES':20} {'STATE':8} NAME")
    for row in rows:
        times = " ".join(f"{format_time(at):20}" for at in (row.created_at, row.last_used_at, row.expires_at))
        print(f"{row.id:10} {times} {api_keys.state(row):8} {row.name}")


def _revoke(parsed: argparse.Namespace, database: Database) -> None:
    with database.write() as session:
        key = api_keys.revoke(session, parsed.id)
    print(f"Key {key.id} ({key.name}) is revoked; servers refuse it within {api_keys.CACHE_SECONDS:.0f} seconds.")


def _set_budget(parsed: argparse.Namespace, database: Database) -> None:
    with database.write() as session:
        key = api_keys.get(session, parsed.id)
        budgets.put(session, "key", key.id, key.name, parsed.budgets)
    print(f"Budgets of key {key.id} ({key.name}): {', '.join(parsed.budgets) or 'none'}.")


def _view(key: ApiKey) -> dict[str, str | None]:
    times = _describe_times(key, "createdAt", "lastUsedAt", "expiresAt", "revokedAt")
    return {"id": key.id, "name": key.name, "state": api_keys.state(key)} | times


def _describe_times(key: ApiKey, *names: str) -> dict[str, str | None]:
    times = {
        "createdAt": key.created_at,
        "lastUsedAt": key.last_used_at,
        "expiresAt": key.expires_at,
        "revokedAt": key.revoked_at,
    }
    return {name: iso_time(at) if (at := times[name]) else None for name in names}


def format_time(at: datetime | None) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S") if at else "never"
