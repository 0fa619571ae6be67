from service.auth.authentication import SearchSlot
from service.deps import ReadSession
from service.http.routing import api_router
from service.presenters.tpus import tpus_view
from service.schemas.tpus import Tpus

router = api_router(prefix="/tpus", tags=["tpus"])


@router.get("", dependencies=[SearchSlot])
def list_tpus(session: ReadSession) -> Tpus:
    """List the TPUs that were requested and are not known to be deleted, with state, health, job and cost so far."""
    return tpus_view(session)
