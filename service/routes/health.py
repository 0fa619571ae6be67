"""Health checks, without a key."""

import logging
import os
from importlib.metadata import version

from fastapi import APIRouter, Response

from core.errors import StoreUnavailable
from service.deps import OpenStores, Stores
from service.schemas.base import Health, Readiness

logger = logging.getLogger(__name__)

router = APIRouter(tags=["health"])

_OK = "ok"


@router.get("/health")
async def health() -> Health:
    """The process is alive."""
    return Health(status=_OK, version=version("gradient-jobs"))


@router.get("/readiness", responses={503: {"model": Readiness, "description": "Requests would fail."}})
def readiness(response: Response, stores: Stores) -> Readiness:
    """Requests can be served."""
    checks = {"database": _database(stores), "storage": _storage(stores)}
    ready = set(checks.values()) == {_OK}
    response.status_code = 200 if ready else 503
    return Readiness(status=_OK if ready else "unavailable", checks=checks)


def _database(stores: OpenStores) -> str:
    try:
        stores.database.ping()
    except StoreUnavailable as error:
        return error.message
    return _OK


def _storage(stores: OpenStores) -> str:
    root = stores.settings.root
    if os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return _OK
    # The path goes only to the log: this endpoint needs no key.
    logger.error("home_not_writable", extra={"path": str(root)})
    return "GRADIENT_HOME cannot be written."
