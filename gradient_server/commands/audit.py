"""`gradient-server audit`: the record of what people did to jobs, changed elsewhere, were refused, and read."""

import argparse
import json
from contextlib import closing
from datetime import UTC, datetime, timedelta

from core.formatting import iso_time
from core.security.actor import Action, actions
from core.settings import Settings
from core.settings.limits import MAX_DAYS
from gradient_server.commands.keys import format_time, open_database

_HOST = "gradient-server"  # in place of a key: a command on the host


def run(parsed: argparse.Namespace, settings: Settings) -> int:
    """Print what people did, oldest first."""
    since = datetime.now(UTC) - timedelta(days=min(max(parsed.days, 0.0), MAX_DAYS))
    with closing(open_database(settings)) as database, database.read() as session:
        done = actions(session, since)
    for action in done:
        print(json.dumps(_view(action)) if parsed.json else _line(action))
    return 0


def _view(action: Action) -> dict[str, str | None]:
    return {
        "at": iso_time(action.at),
        "actorKey": action.key_id,
        "actor": action.key_name or action.key_id or (_HOST if action.address is None else None),
        "user": action.user,
        "address": action.address,
        "action": action.kind,
        "target": action.target,
        "detail": action.detail,
        "result": action.result or "done",
    }


def _line(action: Action) -> str:
    who = f"{action.key_name} ({action.key_id})" if action.key_id else "without a key" if action.address else _HOST
    who += f" from {action.address}" if action.address else ""
    detail = "".join(f"  {text}" for text in (action.detail, action.result) if text)
    line = f"{format_time(action.at)}  {who:45}  {action.kind:18}  {action.target}{detail}"
    return "".join(character if character.isprintable() else "�" for character in line)
