"""The page of the TPUs that bill, and whose they are."""

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.auth import PageCaller, require_key_or_session
from service.dashboard.rendering import page
from service.deps import Reading
from service.tpus import tpus

router = APIRouter(dependencies=[Depends(require_key_or_session)])


@router.get("/ui/tpus")
def show_tpus(session: Reading, caller: PageCaller) -> Response:
    """Every TPU that was asked for and is not known to be gone."""
    return page("tpus.html", caller=caller, found=tpus(session).tpus)
