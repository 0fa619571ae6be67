import logging
import os

from fastapi import Response

from core.errors import StoreUnavailable
from core.jobs import cloud_resources
from core.release import release_version
from service.app_state import AppState
from service.deps import AppStateDep
from service.http.errors import PUBLIC_RESPONSES
from service.http.routing import Router
from service.schemas.base import Health, Readiness

logger = logging.getLogger(__name__)

router = Router(tags=["health"], responses=PUBLIC_RESPONSES)

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
    if ready and (since := _find_refusal(app_state)) is not None:
        checks["tpus"] = f"Google has refused the workers' requests or not answered since {since}: see the TPU page."
    return Readiness(status=_OK if ready else "unavailable", checks=checks)


def _check_database(app_state: AppState) -> str:
    try:
        app_state.database.ping()
    except StoreUnavailable as error:
        return error.message
    return _OK


def _find_refusal(app_state: AppState) -> str | None:
    """Return since when Google refuses the workers; its words need a key."""
    with app_state.database.read() as session:
        refusal = cloud_resources.find_refusal(session)
    return refusal and refusal.partition(" UTC")[0] + " UTC"


def _check_storage(app_state: AppState) -> str:
    root = app_state.settings.root
    if os.access(root, os.R_OK | os.W_OK | os.X_OK):
        return _OK
    # The path goes only to the log: this endpoint needs no key.
    logger.error("home_not_writable", extra={"path": str(root)})
    return "GRADIENT_HOME cannot be written."
