"""The page of receivers of notifications: the list with their last messages, and the form that saves one."""

from collections.abc import Mapping

from fastapi import Depends
from fastapi.responses import RedirectResponse, Response

from core.db.models.notifications import Receiver
from core.errors import ExtraMissing, GradientError, KeyNeeded, SpecInvalid
from core.jobs import queries
from core.jobs.spec.notify import DEFAULT_EVENTS
from core.notifications import deliveries, receivers
from core.security.encryption import Vault
from service.app_state import AppState
from service.auth.authentication import PageCaller, Principal, require_key_again, require_key_or_session
from service.auth.ownership import changeable, require_owner
from service.dashboard.forms.settings_pages import render_settings, whole_number
from service.dashboard.login import FormTexts, SameOriginForm
from service.dashboard.rendering import settings_url
from service.deps import AppStateDep
from service.http.routing import Router
from service.presenters.notifications import receiver_view, receiver_views
from service.schemas.base import parse_request
from service.schemas.notifications import DeliveryView, ReceiverView, SaveReceiver

router = Router(dependencies=[Depends(require_key_or_session)])

_SHOWN = 10  # last messages of each receiver


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
        with app_state.database.write() as session:
            if action == "delete":
                receivers.delete(session, name)
            elif action == "test":
                deliveries.send_test(session, receivers.get(session, name))
            elif action == "replay":
                deliveries.replay(session, name, texts.get("message", ""))
            else:
                body = dict(_read_form(texts))
                receiver, _, secret = receivers.put(session, Vault(app_state.settings), caller.id, name, body)
                saved = receiver_view(session, receiver, secret)
    except (KeyNeeded, SpecInvalid, ExtraMissing) as error:
        return _page(app_state, caller, texts, error)
    if action in {"delete", "test", "replay"}:
        return RedirectResponse(settings_url("notifications"), 303)
    return _page(app_state, caller, {}, saved=saved)


def _read_form(texts: Mapping[str, str]) -> SaveReceiver:
    fields = {
        "url": texts.get("url", "").strip(),
        "events": texts.get("events", "").replace(",", " ").split() or [*DEFAULT_EVENTS],
        "jobs": [texts["jobs"]] if texts.get("jobs") else [],
        "quietSeconds": 60 * (whole_number(texts, "quiet") or 0),
    }
    return parse_request(SaveReceiver, fields)


def _page(
    app_state: AppState,
    caller: Principal,
    texts: Mapping[str, str],
    error: GradientError | None = None,
    saved: ReceiverView | None = None,
) -> Response:
    with app_state.database.read() as session:
        shown = receiver_views(session)
        last = {view.name: deliveries.last(session, view.name, _SHOWN) for view in shown}
        values = {
            "receivers": shown,
            "messages": {name: [DeliveryView.of(message) for message in last[name]] for name in last},
            "mine": dict(changeable(session, app_state, caller.id, [(view.owner_key, None) for view in shown])),
            "projects": [project.name for project in queries.projects(session)],
            "events": ", ".join(DEFAULT_EVENTS),
        }
    return render_settings("notifications", caller, app_state, error, saved=saved, texts=texts, **values)
