from collections.abc import Sequence

from sqlalchemy.orm import Session

from core.db.models.sweeps import Sweep
from core.jobs.templates.sweeps import sweeps
from core.jobs.templates.sweeps.plan import Plan
from service.app_state import AppState
from service.presenters.templates import template_fields
from service.schemas.sweeps import SweepDetails, SweepView, TrialView


def sweep_details(session: Session, app_state: AppState, sweep: Sweep) -> SweepDetails:
    [view] = sweep_views(session, app_state, [sweep])
    trials = [TrialView.of(trial) for trial in sweeps.trials(session, sweep.id)]
    return SweepDetails(**dict(view), trials=trials)


def sweep_views(session: Session, app_state: AppState, sweeps_shown: Sequence[Sweep]) -> list[SweepView]:
    shared = template_fields(session, app_state, sweeps_shown)
    counts = sweeps.counts(session, [sweep.id for sweep in sweeps_shown])
    views = []
    for sweep in sweeps_shown:
        plan = Plan.from_json(sweep.plan)
        spent = sweeps.spent(session, sweep.id)
        best = sweeps.best_trial(session, sweep.id, plan)
        views.append(
            SweepView.of(
                sweep,
                **shared[sweep.id] | plan.to_json(),
                max_trials=plan.trials,
                hours=spent.hours,
                dollars=spent.dollars,
                gpu_hours=spent.gpu_hours,
                counts=counts[sweep.id],
                best=None if best is None else TrialView.of(best),
            )
        )
    return views
