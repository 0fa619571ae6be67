from sqlalchemy.orm import Session

from core.db.models.jobs import Project
from core.jobs import projects, queries
from core.jobs.costs import budgets
from core.jobs.projects import ActiveCounts
from service.app_state import AppState
from service.presenters.jobs import project_view
from service.schemas.projects import BudgetView, Projects, ProjectView


def projects_view(session: Session, app_state: AppState) -> Projects:
    live, counts = projects.active_counts(session), app_state.job_counts.get(session)
    views = [
        project_view(project, counts.get(project.id, 0), live.get(project.id, ActiveCounts()), app_state.settings)
        for project in queries.projects(session)
    ]
    _add_budgets(session, views)
    return Projects(projects=views)


def project_details(session: Session, app_state: AppState, project: Project) -> ProjectView:
    live = projects.active_counts(session, project.id).get(project.id, ActiveCounts())
    view = project_view(project, queries.job_count(session, project.id), live, app_state.settings)
    _add_budgets(session, [view])
    return view


def _add_budgets(session: Session, views: list[ProjectView]) -> None:
    states = budgets.states(session, "project", [view.id for view in views])
    for view in views:
        view.budgets = [BudgetView.of(state) for state in states.get(view.id, ())]
