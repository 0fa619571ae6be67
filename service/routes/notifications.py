"""Receivers of notifications, and the messages to them."""

from typing import Annotated, Any

from fastapi import Depends, Query, Response

from core.db.models.notifications import NotificationDelivery
from core.notifications import deliveries, receivers
from service.auth.authentication import Caller
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.json_body import json_body_schema, parse_json_body
from service.http.routing import api_router
from service.presenters.notifications import delivery_view, receiver_view, receiver_views, save
from service.schemas.notifications import (
    DeliveriesPage,
    DeliveryView,
    Receivers,
    ReceiverView,
    SavedReceiver,
    SaveReceiver,
)

router = api_router(prefix="/notifications", tags=["notifications"])

_SAVED: dict[int | str, dict[str, Any]] = {201: {"model": SavedReceiver, "description": "The receiver was created."}}


@router.get("")
def list_receivers(session: ReadSession) -> Receivers:
    """List receivers, by name."""
    return Receivers(receivers=receiver_views(session))


@router.get("/{receiver}")
def show_receiver(session: ReadSession, receiver: str) -> ReceiverView:
    """Return one receiver."""
    return receiver_view(session, receivers.get(session, receiver))


@router.put("/{receiver}", responses=_SAVED, openapi_extra=json_body_schema(SaveReceiver))
def save_receiver(
    response: Response,
    session: WriteSession,
    app_state: AppStateDep,
    caller: Caller,
    receiver: str,
    body: Annotated[SaveReceiver, Depends(parse_json_body(SaveReceiver))],
) -> SavedReceiver:
    """Save a receiver, replacing and enabling an existing one of that name."""
    saved, created = save(session, app_state, caller.id, receiver, body)
    response.status_code = 201 if created else 200
    return saved


@router.post("/{receiver}/test", status_code=202)
def send_test(session: WriteSession, _caller: Caller, receiver: str) -> DeliveryView:
    """Send a test message to a receiver; its deliveries say what came back."""
    delivery_id = deliveries.send_test(session, receivers.get(session, receiver).id)
    return delivery_view(session.get_one(NotificationDelivery, delivery_id))


@router.get("/{receiver}/deliveries")
def list_deliveries(
    session: ReadSession,
    receiver: str,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
    after: Annotated[str | None, Query(description="id of the last message on the previous page")] = None,
) -> DeliveriesPage:
    """List the messages to a receiver of the last 30 days, newest first, with what came back."""
    shown, following = deliveries.page(session, receivers.get(session, receiver).id, limit=limit, after=after)
    return DeliveriesPage(deliveries=[delivery_view(delivery) for delivery in shown], next=following)


@router.post("/{receiver}/deliveries/{delivery_id}/replay", status_code=202)
def replay_delivery(session: WriteSession, _caller: Caller, receiver: str, delivery_id: str) -> DeliveryView:
    """Send a message again, with the same id."""
    return delivery_view(deliveries.replay(session, receivers.get(session, receiver).id, delivery_id))


@router.delete("/{receiver}", status_code=204)
def delete_receiver(session: WriteSession, _caller: Caller, receiver: str) -> None:
    """Delete a receiver with its messages; new jobs that name it are refused."""
    receivers.delete(session, receiver)
