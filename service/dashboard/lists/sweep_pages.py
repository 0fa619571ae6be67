from itertools import accumulate
from typing import Literal

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response

from core.db.models.sweeps import Sweep
from core.jobs.templates import templates
from core.jobs.templates.sweeps import sweeps
from service.auth.authentication import PageCaller, SearchSlot, require_key_or_session
from service.auth.ownership import OwnerCheck, changeable_owners
from service.dashboard.charts import Chart, Series
from service.dashboard.login import SameOriginForm
from service.dashboard.rendering import render_page
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.routing import Router
from service.presenters.sweeps import sweep_details, sweep_views
from service.schemas.sweeps import SweepDetails, SweepsPage

router = Router(dependencies=[Depends(require_key_or_session), OwnerCheck])

_PAGE = 50
_CHANGES = {"pause": sweeps.pause, "resume": sweeps.resume, "stop": sweeps.stop, "delete": sweeps.delete}
_COLOURS = {"complete": 0, "pruned": 1, "running": 2, "failed": 3, "cancelled": 4, "waiting": 4}
_BEST_COLOUR = 5


@router.get("/ui/sweeps", dependencies=[SearchSlot])
def show_sweeps(session: ReadSession, app_state: AppStateDep, caller: PageCaller, after: str | None = None) -> Response:
    shown, following = templates.page(session, Sweep, limit=_PAGE, after=after)
    page = SweepsPage(sweeps=sweep_views(session, app_state, shown), next=following)
    return render_page("sweeps/list.html", caller=caller, found=page, after=after)


@router.get("/ui/sweeps/{sweep_id}")
def show_sweep(session: ReadSession, app_state: AppStateDep, caller: PageCaller, sweep_id: str) -> Response:
    sweep = sweep_details(session, app_state, sweeps.get(session, sweep_id))
    owned = bool(changeable_owners(session, app_state, caller.id, [sweep.owner_key]))
    return render_page("sweeps/sweep.html", caller=caller, found=sweep, own=owned, charts=draw_objective(sweep))


def draw_objective(sweep: SweepDetails) -> list[Chart]:
    """Return the chart of the value of each trial by its number, and the best so far; none without values."""
    values = [(trial.state, float(trial.number), trial.value) for trial in sweep.trials if trial.value is not None]
    if not values:
        return []
    values.sort(key=lambda value: value[1])
    pick = min if sweep.goal == "min" else max
    best = list(accumulate((value for _, _, value in values), pick))
    line = Series(
        "best so far", [(x, y) for (_, x, _), y in zip(values, best, strict=True)], f"{best[-1]:.6g}", _BEST_COLOUR
    )
    marks = {state: [(x, y) for other, x, y in values if other == state] for state, _, _ in values}
    series = [
        Series(state, points, f"{len(points)} trials" if len(points) > 1 else "1 trial", _COLOURS[state], "marks")
        for state, points in marks.items()
    ]
    return [Chart(f"{sweep.metric} by trial", "number", [line, *series])]


@router.post("/ui/sweeps/{sweep_id}/{action}", dependencies=[SameOriginForm])
def change_sweep(
    session: WriteSession, _caller: PageCaller, sweep_id: str, action: Literal["pause", "resume", "stop", "delete"]
) -> Response:
    _CHANGES[action](session, sweep_id)
    return RedirectResponse("/ui/sweeps" + ("" if action == "delete" else f"/{sweep_id}"), 303)
