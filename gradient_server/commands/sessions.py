import argparse
import json
from contextlib import closing

from core.db.database import Database
from core.db.models.credentials import ApiKey, BrowserSession
from core.formatting import iso_time
from core.security import sessions
from core.settings import Settings
from gradient_server.commands.keys import format_time, open_database


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    with closing(open_database(settings)) as database:
        if parsed.verb == "list":
            _list(database, as_json=parsed.json)
        else:
            _end(parsed, database)
    return 0


def _list(database: Database, *, as_json: bool) -> None:
    with database.read() as session:
        rows = sessions.list_sessions(session)
    if as_json:
        print(json.dumps([_view(row, key) for row, key in rows], indent=2))
        return
    if not rows:
        print("There are no open sessions.")
        return
    print(f"{'ID':15} {'CREATED':20} {'LAST USED':20} {'EXPIRES':20} {'KEY':10} NAME OF THE KEY")
    for row, key in rows:
        times = " ".join(f"{format_time(at):20}" for at in (row.created_at, row.last_used_at, row.expires_at))
        print(f"{row.id:15} {times} {key.id:10} {key.name}")


def _end(parsed: argparse.Namespace, database: Database) -> None:
    with database.write() as session:
        if parsed.all:
            count = sessions.end_all(session)
        else:
            sessions.end_session(session, parsed.id)
            count = 1
    print(f"{count} session{'' if count == 1 else 's'} ended; servers refuse them within 5 seconds.")


def _view(row: BrowserSession, key: ApiKey) -> dict[str, str]:
    times = {"createdAt": row.created_at, "lastUsedAt": row.last_used_at, "expiresAt": row.expires_at}
    return {"id": row.id, "keyId": key.id, "keyName": key.name} | {k: iso_time(at) for k, at in times.items()}
