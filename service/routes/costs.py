import csv
import io

from fastapi.responses import Response

from core.jobs.costs.report import report_of_project
from service.auth.authentication import SearchSlot
from service.deps import ReadSession
from service.http.routing import api_router
from service.schemas.costs import ByParameter, CostRowView, Costs, DaysParameter, ProjectParameter

router = api_router(prefix="/costs", tags=["costs"])


@router.get("", dependencies=[SearchSlot])
def show_costs(
    session: ReadSession, by: ByParameter = "project", days: DaysParameter = 30, project: ProjectParameter = None
) -> Costs:
    """Sum what was spent in the last days."""
    return Costs(by=by, days=days, rows=[CostRowView.of(row) for row in report_of_project(session, by, days, project)])


@router.get("/csv", dependencies=[SearchSlot], response_class=Response)
def show_costs_as_csv(
    session: ReadSession, by: ByParameter = "project", days: DaysParameter = 30, project: ProjectParameter = None
) -> Response:
    """Return the same as CSV."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow([by, "usd", "simulated_usd", "gpu_hours", "jobs"])
    for row in report_of_project(session, by, days, project):
        amounts = [round(amount, 6) for amount in (row.cost, row.simulated_cost, row.gpu_hours)]
        rows.writerow([_plain(row.name), *amounts, row.jobs])
    return Response(text.getvalue(), media_type="text/csv")


def _plain(name: str) -> str:
    """Return a name that no spreadsheet takes for a formula."""
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name
