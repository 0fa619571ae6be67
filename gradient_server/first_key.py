"""The key of this machine's own user: made at the first start, written where the CLI finds it."""

import json
import os
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from core import keys
from core.db import Database
from core.errors import Unauthorized


def ensure_local_key(path: Path, url: str, database: Database) -> None:
    """Have a working key in `path` (mode 0600), with the server's address; one that works already is kept."""
    secret = _stored(path).get("apiKey")
    with database.write() as session:
        if not _works(session, secret):
            _, secret = keys.create(session, "this machine")
    _write(path, {"url": url, "apiKey": secret})


def _works(session: Session, secret: object) -> bool:
    if not isinstance(secret, str):
        return False
    try:
        keys.authenticate(session, secret)
    except Unauthorized:
        return False
    return True


def _stored(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _write(path: Path, content: dict[str, Any]) -> None:
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(content, file)
    new.replace(path)
