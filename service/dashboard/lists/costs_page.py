from fastapi import Depends
from fastapi.responses import Response

from core.jobs.costs.report import report_of_project
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.dashboard.rendering import render_page
from service.deps import ReadSession
from service.http.routing import Router
from service.schemas.costs import ByParameter, DaysParameter, ProjectParameter

router = Router(dependencies=[Depends(require_key_or_session)])


@router.get("/ui/costs", dependencies=[SearchSlot])
def show_page(
    session: ReadSession,
    caller: PageCaller,
    by: ByParameter = "project",
    days: DaysParameter = 30,
    project: ProjectParameter = None,
) -> Response:
    rows = report_of_project(session, by, days, project)[:: -1 if by == "day" else 1]
    units = [row.cost for row in rows], [row.simulated_cost for row in rows], [row.gpu_hours for row in rows]
    parts = next((amounts for amounts in units if sum(amounts)), units[0])
    shown = [(row, part / (sum(parts) or 1.0)) for row, part in zip(rows, parts, strict=True)]
    return render_page("costs.html", caller=caller, by=by, days=days, project=project, rows=shown)
