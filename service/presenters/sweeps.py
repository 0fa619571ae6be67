from collections.abc import Sequence

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.jobs import Project
from core.db.models.sweeps import Sweep
from core.jobs.templates.sweeps import sweeps
from core.jobs.templates.sweeps.plan import Plan
from core.security import api_keys
from service.deps import AppState
from service.presenters.jobs import option_fields, port_views
from service.schemas.sweeps import SweepDetails, SweepView, TrialView


def sweep_details(session: Session, app_state: AppState, sweep: Sweep) -> SweepDetails:
    [view] = sweep_views(session, app_state, [sweep])
    trials = [TrialView.of(trial) for trial in sweeps.trials(session, sweep.id)]
    return SweepDetails(**dict(view), trials=trials)


def sweep_views(session: Session, app_state: AppState, found: Sequence[Sweep]) -> list[SweepView]:
    ids = {one.project_id for one in found}
    names = {row.id: row.name for row in session.execute(select(Project.id, Project.name).where(Project.id.in_(ids)))}
    owners = api_keys.names(session, {one.submitted_by for one in found})
    counts = sweeps.counts(session, [one.id for one in found])
    views = []
    for one in found:
        plan = Plan.from_json(one.plan)
        hours, dollars = sweeps.spent(session, one.id)
        best = sweeps.best_trial(session, one.id, plan)
        views.append(
            SweepView.of(
                one,
                **option_fields(one.spec) | {"name": shown_name(one), "ports": port_views(one.spec)},
                **{name: getattr(plan, name) for name in _OF_PLAN},
                max_trials=plan.trials,
                project=names[one.project_id],
                owner=owners.get(one.submitted_by),
                owner_key=one.submitted_by,
                hours=hours,
                dollars=dollars,
                counts=counts[one.id],
                best=None if best is None else TrialView.of(best),
                url=f"{app_state.settings.public_url}/ui/sweeps/{one.id}",
            )
        )
    return views


_OF_PLAN = (
    "space",
    "method",
    "metric",
    "goal",
    "stop",
    "stop_after",
    "seed",
    "parallel",
    "max_hours",
    "max_dollars",
)


def shown_name(sweep: Sweep) -> str:
    return sweep.spec.name or f"sweep {sweep.seq}"
