import logging
import os

from fastapi import APIRouter, Response

from core.errors import StoreUnavailable
from core.release import release_version
from service.deps import AppState, AppStateDep
from service.schemas.base import Health, Readiness

logger = logging.getLogger(__name__)

router = APIRouter(tags=["health"])

_OK = "ok"


@router.get("/health")
async def health() -> Health:
    """Report that the process is alive."""
    return Health(status=_OK, version=release_version())


@router.get("/readiness", responses={503: {"model": Readiness, "description": "Requests would fail."}})
def readiness(response: Response, app_state: AppStateDep) -> Readiness:
    """Report whether requests can be served."""
    checks = {"database": _check_database(app_state), "storage": _check_storage(app_state)}
    ready = set(checks.values()) == {_OK}
    response.status_code = 200 if ready else 503
    return Readiness(status=_OK if ready else "unavailable", checks=checks)


def _check_database(app_state: AppState) -> str:
    try:
        app_state.database.ping()
    except StoreUnavailable as error:
        return error.message
    return _OK


def _check_storage(app_state: AppState) -> str:
    root = app_state.settings.root
    if os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return _OK
    # The path goes only to the log: this endpoint needs no key.
    logger.error("home_not_writable", extra={"path": str(root)})
    return "GRADIENT_HOME cannot be written."
