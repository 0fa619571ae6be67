"""The API key for this machine's own user: created at the first start, and written where the CLI finds it."""

import getpass
import json
import os
import socket
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from core.db.database import Database
from core.errors import Unauthorized
from core.security import api_keys
from core.system.filesystem import write_atomically


def ensure_local_key(path: Path, url: str, database: Database) -> str:
    """Write a working key and the server's address to `path` (mode 0600); a key there that still works is kept.

    Returns the key's id.
    """
    saved = _read_file(path)
    secret = saved.get("apiKey")
    with database.write() as session:
        key_id = _key_id(session, secret)
        if key_id is None:
            key, secret = api_keys.create(session, f"{_login()}@{socket.gethostname()}")
            key_id = key.id
    wanted = {"url": url, "apiKey": secret}
    if saved != wanted:
        write_atomically(path, json.dumps(wanted).encode(), durable=False)
    return key_id


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name, as in some containers
        return str(os.getuid())


def _key_id(session: Session, secret: object) -> str | None:
    if not isinstance(secret, str):
        return None
    try:
        return api_keys.authenticate(session, secret).id
    except Unauthorized:
        return None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return saved if isinstance(saved, dict) else {}
