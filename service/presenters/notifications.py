from sqlalchemy import select
from sqlalchemy.orm import Session

from core.db.models.notifications import Receiver
from core.notifications import receivers
from service.schemas.notifications import ReceiverView


def receiver_views(session: Session) -> list[ReceiverView]:
    return [receiver_view(session, receiver) for receiver in session.scalars(select(Receiver).order_by(Receiver.id))]


def receiver_view(session: Session, receiver: Receiver, secret: str | None = None) -> ReceiverView:
    jobs = receivers.scopes_of(session, receiver.id)
    return ReceiverView.of(receiver, name=receiver.id, owner_key=receiver.submitted_by, jobs=jobs, secret=secret)
