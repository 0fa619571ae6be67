from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Depends, Query, Request
from fastapi.responses import RedirectResponse, Response
from sqlalchemy.orm import Session

from core.db.database import on_commit
from core.errors import GradientError, KeyNeeded, ProjectNotFound, SpecInvalid
from core.jobs import projects, queries
from core.security import actor, api_keys, credentials
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from core.settings.limits import MAX_DAYS
from service.app_state import AppState
from service.auth.authentication import (
    PageCaller,
    Principal,
    is_administrator,
    require_administrator,
    require_key_again,
    require_key_or_session,
)
from service.auth.ownership import require_project_owner
from service.dashboard.login import FormTexts, SameOriginForm
from service.dashboard.rendering import render_page, settings_url
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.errors import STATUS_BY_ERROR
from service.http.routing import Router
from service.presenters.catalogue import image_names
from service.presenters.keys import keys_view, make_key
from service.schemas.base import parse_request
from service.schemas.credentials import CreatedKey, CreateKey

router = Router(dependencies=[Depends(require_key_or_session)])

_MOST_ACTIONS = 500
_PAGES = {
    "keys": "API keys",
    "secrets": "Secrets",
    "registries": "Registries",
    "notifications": "Notifications",
    "server": "Server",
    "record": "Record",
    "health": "Health",
}
_STORED: dict[str, Callable[[Session, str], object]] = {
    "secrets": credentials.secrets_of,
    "registries": credentials.registries,
}


def render_settings(
    name: str, caller: Principal, app_state: AppState, error: GradientError | None = None, **values: object
) -> Response:
    return render_page(
        f"forms/{name}.html",
        200 if error is None else STATUS_BY_ERROR[type(error)],
        caller=caller,
        provider=app_state.provider.name,
        administrator=is_administrator(app_state, caller.id),
        pages=_PAGES,
        shown_page=name,
        problem=None if error is None else error.message,
        **values,
    )


@router.get("/ui/settings")
def redirect_to_first() -> Response:
    return RedirectResponse("/ui/settings/keys", 303)


@router.get("/ui/settings/keys")
def show_keys(session: ReadSession, app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show the API keys: all for administrators, else the own one."""
    return render_settings(
        "keys", caller, app_state, keys=keys_view(session, app_state, caller).keys, created=None, texts={}
    )


@router.post("/ui/settings/keys", dependencies=[SameOriginForm])
def create_key(app_state: AppStateDep, caller: PageCaller, texts: FormTexts) -> Response:
    """Create an API key, and show it this once."""
    require_administrator(app_state, caller)
    created: CreatedKey | None = None
    error: GradientError | None = None
    try:
        require_key_again(app_state, caller, texts)
        with app_state.database.write() as session:
            created = make_key(session, app_state, _wanted_key(texts))
    except (KeyNeeded, SpecInvalid, ProjectNotFound) as refused:
        error = refused
    with app_state.database.read() as session:
        keys = keys_view(session, app_state, caller).keys
    return render_settings("keys", caller, app_state, error, keys=keys, created=created, texts={} if created else texts)


def _wanted_key(texts: Mapping[str, str]) -> CreateKey:
    lists = {
        field: [name.strip() for name in texts.get(field, "").split(",") if name.strip()] or None
        for field in ("projects", "machineTypes")
    }
    return parse_request(
        CreateKey,
        {
            "name": texts.get("name", "").strip(),
            "scope": texts.get("scope") or "submit",
            "days": whole_number(texts, "days"),
            "maxJobs": whole_number(texts, "maxJobs"),
            "agent": texts.get("agent") == "yes",
            **lists,
        },
    )


def whole_number(texts: Mapping[str, str], field: str) -> int | None:
    text = texts.get(field, "").strip()
    if not text:
        return None
    if not text.isdecimal():
        raise SpecInvalid(f"{text[:40]!r} is not a whole number. Write one, or leave the field empty.", field=field)
    return int(text[:9])


@router.post("/ui/settings/keys/{key_id}/revoke", dependencies=[SameOriginForm])
def revoke_key(
    session: WriteSession, app_state: AppStateDep, caller: PageCaller, texts: FormTexts, key_id: str
) -> Response:
    if key_id != caller.id:
        require_administrator(app_state, caller)
    require_key_again(app_state, caller, texts)
    api_keys.revoke(session, key_id)
    on_commit(session, app_state.keys.clear)
    return RedirectResponse("/ui/settings/keys", 303)


def _project_id(session: Session, name: str) -> str:
    return projects.get_id(session, name) if name else ALL_PROJECTS


def _stored_page(
    page: str,
    session: Session,
    app_state: AppState,
    caller: Principal,
    texts: Mapping[str, str],
    error: GradientError | None = None,
) -> Response:
    project = texts.get("project", "")
    names = [project.name for project in queries.projects(session)]
    stored = {page: _STORED[page](session, _project_id(session, project))}
    return render_settings(page, caller, app_state, error, project=project, projects=names, texts=texts, **stored)


@router.get("/ui/settings/secrets")
def show_secrets(session: ReadSession, app_state: AppStateDep, caller: PageCaller, project: str = "") -> Response:
    """Show the names of the secrets of one project, or of those for all projects."""
    return _stored_page("secrets", session, app_state, caller, {"project": project})


@router.post("/ui/settings/secrets", dependencies=[SameOriginForm])
def change_secrets(app_state: AppStateDep, caller: PageCaller, texts: FormTexts) -> Response:
    """Store a secret, or delete one."""

    def change(session: Session, project_id: str) -> None:
        name = texts.get("name", "").strip()
        if texts.get("action") == "delete":
            credentials.delete_secret(session, project_id, name)
        else:
            credentials.put_secret(session, Vault(app_state.settings), project_id, name, texts.get("value", ""))

    return _change_stored("secrets", app_state, caller, texts, change)


@router.get("/ui/settings/registries")
def show_registries(session: ReadSession, app_state: AppStateDep, caller: PageCaller, project: str = "") -> Response:
    """Show the logins for registries of one project, or of those for all projects."""
    return _stored_page("registries", session, app_state, caller, {"project": project})


@router.post("/ui/settings/registries", dependencies=[SameOriginForm])
def change_registries(app_state: AppStateDep, caller: PageCaller, texts: FormTexts) -> Response:
    """Store the login for a registry, or delete one."""

    def change(session: Session, project_id: str) -> None:
        host = texts.get("host", "").strip()
        if texts.get("action") == "delete":
            credentials.delete_registry(session, project_id, host)
        else:
            credentials.put_registry(
                session,
                Vault(app_state.settings),
                project_id,
                host,
                texts.get("username", "").strip(),
                texts.get("password", ""),
                push="push" in texts,
            )

    return _change_stored("registries", app_state, caller, texts, change)


def _change_stored(
    page: str,
    app_state: AppState,
    caller: Principal,
    texts: Mapping[str, str],
    change: Callable[[Session, str], None],
) -> Response:
    try:
        require_key_again(app_state, caller, texts)
        with app_state.database.write() as session:
            project_id = _project_id(session, texts.get("project", ""))
            require_project_owner(session, app_state, caller, project_id)
            change(session, project_id)
    except (KeyNeeded, SpecInvalid) as error:
        with app_state.database.read() as session:
            return _stored_page(page, session, app_state, caller, texts, error)
    return RedirectResponse(settings_url(page, project=texts.get("project", "")), 303)


@router.get("/ui/settings/server")
def show_server(app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show the server's retention, limits and image names, which its operator sets."""
    return render_settings(
        "server",
        caller,
        app_state,
        settings=app_state.settings,
        images=image_names(app_state).images,
    )


@router.get("/ui/settings/record")
def show_record(
    session: ReadSession,
    app_state: AppStateDep,
    caller: PageCaller,
    days: Annotated[int, Query(ge=1, le=MAX_DAYS)] = 30,
    key: Annotated[str, Query(max_length=16)] = "",
) -> Response:
    """Show who did what, for administrators: the newest first."""
    require_administrator(app_state, caller)
    since = datetime.now(UTC) - timedelta(days=days)
    done = actor.actions(session, since, key_id=key.strip() or None, most=_MOST_ACTIONS + 1)[::-1]
    cut = len(done) > _MOST_ACTIONS
    return render_settings("record", caller, app_state, actions=done[:_MOST_ACTIONS], cut=cut, days=days, key=key)


@router.get("/ui/settings/health")
def show_health(request: Request, app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show the findings of `gradient-server doctor`, for administrators: they name paths and addresses."""
    require_administrator(app_state, caller)
    run_checks = getattr(request.app.state, "run_checks", None)
    return render_settings("health", caller, app_state, findings=None if run_checks is None else run_checks())
