"""`gradient-server audit`: the record of what people did to jobs, and changed elsewhere."""

import argparse
import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

from core.formatting import iso_time
from core.security.actor import Action, actions_since
from core.settings import Settings
from core.settings.limits import MAX_DAYS
from gradient_server.commands.keys import format_time, open_database

_HOST = "gradient-server"  # in place of a key: a command on the host


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """Print what people did, oldest first."""
    since = datetime.now(UTC) - timedelta(days=min(max(parsed.days, 0.0), MAX_DAYS))
    with closing(open_database(settings)) as database, database.read() as session:
        actions = actions_since(session, since)
    for action in actions:
        print(json.dumps(_view(action)) if parsed.json else _line(action))
    return 0


def _view(action: Action) -> dict[str, str | None]:
    return {
        "at": iso_time(action.at),
        "actorKey": action.key_id,
        "actor": action.key_name or _HOST,
        "action": action.kind,
        "target": action.target,
        "detail": action.detail,
    }


def _line(action: Action) -> str:
    who = f"{action.key_name} ({action.key_id})" if action.key_id else _HOST
    detail = f"  {action.detail}" if action.detail else ""
    line = f"{format_time(action.at)}  {who:30}  {action.kind:18}  {action.target}{detail}"
    return "".join(character if character.isprintable() else "�" for character in line)
