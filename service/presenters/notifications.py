"""Receivers of notifications and the messages to them, as responses and on their page."""

from typing import Any, cast

from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.notifications import NotificationDelivery, Receiver
from core.notifications import receivers
from core.security.encryption import Vault
from service.app_state import AppState
from service.schemas.notifications import DeliveryView, ReceiverView, SavedReceiver, SaveReceiver


def receiver_views(session: Session) -> list[ReceiverView]:
    return [receiver_view(session, receiver) for receiver in session.scalars(select(Receiver).order_by(Receiver.id))]


def receiver_view(session: Session, receiver: Receiver) -> ReceiverView:
    return ReceiverView.of(receiver, **_names(session, receiver))


def delivery_view(delivery: NotificationDelivery) -> DeliveryView:
    return DeliveryView.of(delivery)


def save(
    session: Session, app_state: AppState, key_id: str, name: str, body: SaveReceiver
) -> tuple[SavedReceiver, bool]:
    """Save a receiver; return it, and whether it is new."""
    settings = cast("receivers.Settings", body.model_dump())
    receiver, created, secret = receivers.put(session, Vault(app_state.settings), key_id, name, settings)
    return SavedReceiver.of(receiver, **_names(session, receiver), secret=secret), created


def _names(session: Session, receiver: Receiver) -> dict[str, Any]:
    return {
        "name": receiver.id,
        "owner_key": receiver.submitted_by,
        "jobs": receivers.scopes_of(session, receiver.id),
    }
