"""Public keys of ssh, whose holders enter jobs as the caller's API key."""

from typing import Annotated

from fastapi import Depends
from sqlalchemy import delete, select

from core.db.database import now
from core.db.models.credentials import SshKey
from core.errors import CredentialNotFound
from core.security.actor import record_change
from service.auth.authentication import Caller
from service.deps import AppStateDep, WriteSession
from service.http.json_body import json_body_schema, parse_json_body
from service.http.routing import api_router
from service.schemas.credentials import AddSshKeys, SshAccess
from service.ssh.endpoint import host, unavailable

router = api_router(prefix="/ssh-keys", tags=["keys"])


@router.post("", openapi_extra=json_body_schema(AddSshKeys))
def add_ssh_keys(
    session: WriteSession,
    app_state: AppStateDep,
    caller: Caller,
    body: Annotated[AddSshKeys, Depends(parse_json_body(AddSshKeys))],
) -> SshAccess:
    """Let the holders of ssh keys enter jobs as the caller's API key; the response says where."""
    settings = app_state.settings
    if (reason := unavailable(settings)) is not None:
        raise CredentialNotFound(reason)
    from service.ssh import connection  # noqa: PLC0415 - of an extra

    fingerprints = [connection.fingerprint(line) for line in body.public_keys]
    if body.replace:
        session.execute(delete(SshKey).where(SshKey.key_id == caller.id))
    stored = session.scalars(select(SshKey.fingerprint).where(SshKey.key_id == caller.id)).all()
    for new in sorted(set(fingerprints) - set(stored)):
        session.add(SshKey(fingerprint=new, key_id=caller.id, created_at=now()))
        record_change(session, "ssh_key_added", new)
    public = connection.host_key(settings).export_public_key().decode().strip()
    return SshAccess(host=host(settings), port=settings.ssh.port, host_key=public)
