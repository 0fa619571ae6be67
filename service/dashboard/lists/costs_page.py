from fastapi import Depends
from fastapi.responses import Response

from core.jobs.costs.report import report
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.dashboard.rendering import render_page
from service.deps import ReadSession
from service.http.routing import Router
from service.schemas.costs import ByParameter, DaysParameter

router = Router(dependencies=[Depends(require_key_or_session)])


@router.get("/ui/costs", dependencies=[SearchSlot])
def show_page(
    session: ReadSession, caller: PageCaller, by: ByParameter = "project", days: DaysParameter = 30
) -> Response:
    rows = report(session, by, days)[:: -1 if by == "day" else 1]
    total = sum(row.cost for row in rows)
    hours = sum(row.gpu_hours for row in rows)
    shares = [row.cost / total if total else row.gpu_hours / hours if hours else 0.0 for row in rows]
    return render_page(
        "costs.html", caller=caller, by=by, days=days, rows=[*zip(rows, shares, strict=True)], total=total
    )
