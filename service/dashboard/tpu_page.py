"""The page of billed TPUs and the jobs that own them."""

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.auth.api_keys import PageCaller, require_key_or_session
from service.dashboard.rendering import page
from service.deps import Reading
from service.routes.tpus import list_tpus

router = APIRouter(dependencies=[Depends(require_key_or_session)])


@router.get("/ui/tpus")
def show_tpus(session: Reading, caller: PageCaller) -> Response:
    """Show every TPU that was requested and is not known to be deleted."""
    return page("tpus.html", caller=caller, found=list_tpus(session).tpus)
