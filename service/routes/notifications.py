"""Receivers of notifications, and the messages to them."""

from typing import Annotated

from fastapi import Depends, Response

from core.notifications import deliveries, receivers
from core.security.encryption import Vault
from service.auth.authentication import Caller
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.json_body import json_body_schema, parse_json_body
from service.http.routing import api_router
from service.presenters.notifications import receiver_view, receiver_views
from service.schemas.notifications import Deliveries, DeliveryView, Receivers, ReceiverView, SaveReceiver

router = api_router(prefix="/notifications", tags=["notifications"])


@router.get("")
def list_receivers(session: ReadSession) -> Receivers:
    """List receivers, by name."""
    return Receivers(receivers=receiver_views(session))


@router.get("/{receiver}")
def show_receiver(session: ReadSession, receiver: str) -> ReceiverView:
    """Return one receiver."""
    return receiver_view(session, receivers.get(session, receiver))


@router.put(
    "/{receiver}",
    responses={201: {"model": ReceiverView, "description": "The receiver was created."}},
    openapi_extra=json_body_schema(SaveReceiver),
)
def save_receiver(
    response: Response,
    session: WriteSession,
    app_state: AppStateDep,
    caller: Caller,
    receiver: str,
    body: Annotated[SaveReceiver, Depends(parse_json_body(SaveReceiver))],
) -> ReceiverView:
    """Save a receiver, replacing and enabling an existing one of that name."""
    saved, created, secret = receivers.put(session, Vault(app_state.settings), caller.id, receiver, dict(body))
    response.status_code = 201 if created else 200
    return receiver_view(session, saved, secret)


@router.post("/{receiver}/test", status_code=202)
def send_test(session: WriteSession, _caller: Caller, receiver: str) -> DeliveryView:
    """Send a test message to a receiver; its deliveries say what came back."""
    return DeliveryView.of(deliveries.send_test(session, receivers.get(session, receiver)))


@router.get("/{receiver}/deliveries")
def list_deliveries(session: ReadSession, receiver: str) -> Deliveries:
    """List the last 200 messages to a receiver, newest first, with what came back; they are kept for 30 days."""
    last = deliveries.last(session, receivers.get(session, receiver).id)
    return Deliveries(deliveries=[DeliveryView.of(delivery) for delivery in last])


@router.post("/{receiver}/deliveries/{delivery_id}/replay", status_code=202)
def replay_delivery(session: WriteSession, _caller: Caller, receiver: str, delivery_id: str) -> DeliveryView:
    """Send a message again, with the same id."""
    return DeliveryView.of(deliveries.replay(session, receiver, delivery_id))


@router.delete("/{receiver}", status_code=204)
def delete_receiver(session: WriteSession, _caller: Caller, receiver: str) -> None:
    """Delete a receiver with its messages; new jobs that name it are refused."""
    receivers.delete(session, receiver)
