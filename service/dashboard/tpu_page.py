from fastapi import APIRouter, Depends
from fastapi.responses import Response

from service.auth.authentication import PageCaller, require_key_or_session
from service.dashboard.rendering import render_page
from service.deps import ReadSession
from service.routes.tpus import list_tpus

router = APIRouter(dependencies=[Depends(require_key_or_session)])


@router.get("/ui/tpus")
def show_tpus(session: ReadSession, caller: PageCaller) -> Response:
    """Show every TPU that was requested and is not known to be deleted."""
    return render_page("tpus.html", caller=caller, found=list_tpus(session))
