"""Registries of container images, and how workers sign in to them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Response

from core import credentials
from core.credential_models import Registry
from core.egress import Egress, host_of
from core.image_registry import checked_host
from core.vault import Vault
from service.auth import Caller
from service.bodies import json_body, posted
from service.deps import Reading, Stores, Writing
from service.wire_credentials import Registries, RegistryView, SetRegistry

router = APIRouter(prefix="/registries", tags=["registries"])

_SET: dict[int | str, dict[str, Any]] = {201: {"model": RegistryView, "description": "It is new."}}


@router.get("")
def list_registries(session: Reading) -> Registries:
    """The registries that workers sign in to, by host, without passwords."""
    return Registries(registries=[_view(one) for one in credentials.registries(session)])


@router.put("/{host}", responses=_SET, openapi_extra=json_body(SetRegistry))
def set_registry(
    response: Response,
    session: Writing,
    stores: Stores,
    host: str,
    asked: Annotated[SetRegistry, Depends(posted(SetRegistry))],
) -> RegistryView:
    """Store how to sign in to a registry, over what was there."""
    vault = Vault(stores.settings)
    Egress(stores.settings.egress).check_host(host_of(checked_host(host)), "host")
    registry, made = credentials.put_registry(session, vault, host, asked.username, asked.password)
    response.status_code = 201 if made else 200
    return _view(registry)


@router.delete("/{host}", status_code=204)
def delete_registry(session: Writing, _caller: Caller, host: str) -> None:
    """Forget how to sign in to a registry."""
    credentials.delete_registry(session, host)


def _view(registry: Registry) -> RegistryView:
    return RegistryView(
        host=registry.host,
        username=registry.username,
        created_at=registry.created_at,
        updated_at=registry.updated_at,
    )
