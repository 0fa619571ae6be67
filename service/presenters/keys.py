from collections.abc import Mapping

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.credentials import ApiKey
from core.db.models.jobs import Project
from core.jobs import projects
from core.jobs.costs import budgets
from core.security import api_keys, members
from core.security.key_rights import KeyRights
from service.app_state import AppState
from service.auth.authentication import Principal, is_administrator
from service.schemas.credentials import CreatedKey, CreateKey, Keys, KeyView


def keys_view(session: Session, app_state: AppState, caller: Principal) -> Keys:
    """Return all API keys for an administrator, and the caller's own for everybody else."""
    shown = api_keys.list_keys(session)
    if not is_administrator(app_state, caller.id):
        shown = [key for key in shown if key.id == caller.id]
    names = _project_names(session)
    return Keys(keys=[_key_view(session, app_state, key, names) for key in shown])


def own_key_view(session: Session, app_state: AppState, caller: Principal) -> KeyView:
    names = _project_names(session)
    view = _key_view(session, app_state, session.get_one(ApiKey, caller.id), names)
    roles = members.roles(session, caller.id)
    return view.model_copy(update={"roles": {names[project]: roles[project] for project in roles if project in names}})


def make_key(session: Session, app_state: AppState, wanted: CreateKey) -> CreatedKey:
    names = wanted.projects
    rights = KeyRights(
        scope=wanted.scope,
        projects=None if names is None else tuple(projects.get_id(session, name, "projects") for name in names),
        machine_types=None if wanted.machine_types is None else tuple(wanted.machine_types),
        max_jobs=wanted.max_jobs,
        agent=wanted.agent,
    )
    rights.check([machine.name for machine in app_state.catalogue])
    key, secret = api_keys.create(session, wanted.name, days=wanted.days, rights=rights)
    if wanted.budgets:
        budgets.put(session, "key", key.id, key.name, wanted.budgets)
    return CreatedKey(**_key_view(session, app_state, key, _project_names(session)).model_dump(), api_key=secret)


def _project_names(session: Session) -> Mapping[str, str]:
    return dict(session.execute(select(Project.id, Project.name)).all())


def _key_view(session: Session, app_state: AppState, key: ApiKey, project_names: Mapping[str, str]) -> KeyView:
    rights = KeyRights.of(key.rights)
    return KeyView.model_validate(
        {
            "id": key.id,
            "name": key.name,
            "state": api_keys.state(key),
            "created_at": key.created_at,
            "last_used_at": key.last_used_at,
            "expires_at": key.expires_at,
            "revoked_at": key.revoked_at,
            "last_address": key.last_address,
            "scope": rights.scope,
            "administrator": rights.allows("admin") or key.id in app_state.settings.sign_in.administrators,
            "projects": rights.projects and [project_names.get(project, project) for project in rights.projects],
            "machine_types": rights.machine_types,
            "max_jobs": rights.max_jobs,
            "agent": rights.agent,
            "budgets": [state._asdict() for state in budgets.states(session, "key", [key.id]).get(key.id, ())],
        }
    )
