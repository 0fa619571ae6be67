"""The page of receivers of notifications: the list with their last messages, and the form that saves one."""

from collections.abc import Mapping

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response

from core.db.models.notifications import Receiver
from core.errors import ExtraMissing, GradientError, KeyNeeded, SpecInvalid
from core.jobs import queries
from core.jobs.spec.notify import DEFAULT_EVENTS
from core.notifications import deliveries, receivers
from core.notifications.receivers import MAX_QUIET_SECONDS
from service.app_state import AppState
from service.auth.authentication import PageCaller, Principal, require_key_again, require_key_or_session
from service.auth.ownership import changeable_owners, require_owner
from service.dashboard.forms.settings_pages import render_settings
from service.dashboard.login import FormTexts, SameOriginForm
from service.dashboard.rendering import settings_url
from service.deps import AppStateDep
from service.http.routing import Router
from service.presenters.notifications import delivery_view, receiver_views, save
from service.schemas.base import parse_request
from service.schemas.notifications import SavedReceiver, SaveReceiver

router = Router(dependencies=[Depends(require_key_or_session)])

_SHOWN = 10  # last messages of each receiver
_MINUTE = 60


@router.get("/ui/settings/notifications")
def show_receivers(app_state: AppStateDep, caller: PageCaller) -> Response:
    """Show the receivers, and their last messages with what came back."""
    return _page(app_state, caller, {})


@router.post("/ui/settings/notifications", dependencies=[SameOriginForm])
def change_receivers(app_state: AppStateDep, caller: PageCaller, texts: FormTexts) -> Response:
    """Save or delete a receiver, send it a test, or a message again."""
    name, action = texts.get("name", "").strip(), texts.get("action", "save")
    try:
        with app_state.database.read() as session:
            require_owner(session, app_state, caller, name, Receiver)
        if action in {"save", "delete"}:
            require_key_again(app_state, caller, texts)
        if action == "save":
            return _page(app_state, caller, {}, saved=_save(app_state, caller, name, texts))
        with app_state.database.write() as session:
            receivers.get(session, name)
            if action == "delete":
                receivers.delete(session, name)
            elif action == "test":
                deliveries.send_test(session, name)
            else:
                deliveries.replay(session, name, texts.get("message", ""))
    except (KeyNeeded, SpecInvalid, ExtraMissing) as error:
        return _page(app_state, caller, texts, error)
    return RedirectResponse(settings_url("notifications"), 303)


def _save(app_state: AppState, caller: Principal, name: str, texts: Mapping[str, str]) -> SavedReceiver:
    minutes = texts.get("quiet", "").strip() or "0"
    if not minutes.isdecimal() or int(minutes[:9]) * _MINUTE > MAX_QUIET_SECONDS:
        raise SpecInvalid(
            f"{minutes[:40]!r} is not a number of minutes of at most a week. Write a whole number.", field="quiet"
        )
    fields = {
        "url": texts.get("url", "").strip(),
        "events": texts.get("events", "").replace(",", " ").split() or [*DEFAULT_EVENTS],
        "jobs": [texts["jobs"]] if texts.get("jobs") else [],
        "quietSeconds": int(minutes[:9]) * _MINUTE,
    }
    body = parse_request(SaveReceiver, fields)
    with app_state.database.write() as session:
        return save(session, app_state, caller.id, name, body)[0]


def _page(
    app_state: AppState,
    caller: Principal,
    texts: Mapping[str, str],
    error: GradientError | None = None,
    saved: SavedReceiver | None = None,
) -> Response:
    with app_state.database.read() as session:
        views = receiver_views(session)
        last = {view.name: deliveries.page(session, view.name, limit=_SHOWN, after=None)[0] for view in views}
        mine = changeable_owners(session, app_state, caller.id, {view.owner_key for view in views})
        projects = [project.name for project in queries.projects(session)]
    messages = {name: [delivery_view(delivery) for delivery in of_receiver] for name, of_receiver in last.items()}
    return render_settings(
        "notifications",
        caller,
        app_state,
        error,
        receivers=views,
        messages=messages,
        mine=mine,
        projects=projects,
        saved=saved,
        texts=texts,
        events=", ".join(DEFAULT_EVENTS),
    )
