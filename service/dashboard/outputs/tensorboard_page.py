from typing import Annotated

from fastapi import Depends, Request
from fastapi.responses import Response

from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.dashboard.login import SameOriginForm, read_form
from service.dashboard.rendering import render_page
from service.deps import AppStateDep
from service.http.routing import Router
from service.schemas.base import parse_request
from service.tensorboard.routes import MAX_JOBS, OpenTensorBoard, open_board

router = Router(dependencies=[Depends(require_key_or_session)])


async def _selected_ids(request: Request, _caller: PageCaller) -> list[str]:
    form = await read_form(request, max_fields=MAX_JOBS + 10)
    return [run_id for run_id in form.getlist("ids") if isinstance(run_id, str)]


@router.post("/ui/tensorboard", dependencies=[SameOriginForm, SearchSlot])
async def open_tensorboard(
    app_state: AppStateDep, caller: PageCaller, ids: Annotated[list[str], Depends(_selected_ids)]
) -> Response:
    """Open TensorBoard for the selected jobs, and lead the browser there."""
    wanted = parse_request(OpenTensorBoard, {"ids": ids})
    opened = await open_board(app_state, wanted.ids, caller)
    # Not a redirect: the page's policy lets forms lead to this site only.
    return render_page("sign_in/continue.html", target=opened.url)
