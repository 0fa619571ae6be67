"""Which images the hosts have, as their workers report it."""

from collections.abc import Collection

from sqlalchemy import delete, func, insert, select
from sqlalchemy.orm import Session

from core.db import now
from core.images import MAX_REFERENCE, canonical
from core.jobs.models import HeldImage, Worker
from core.jobs.queries import WORKER_SILENT_SECONDS

MAX_REPORTED = 500
"""Images of one host that are noted: one with more is a build machine, and its jobs wait no longer for it."""


def report(session: Session, host: str, references: Collection[str]) -> None:
    """Note what a host has now, in place of what it had.

    Args:
        session: Writes.
        host: The machine's name.
        references: As its engine lists them; of more than MAX_REPORTED the first are noted.
    """
    session.execute(delete(HeldImage).where(HeldImage.host == host))
    noted = [one for one in dict.fromkeys(references) if len(one) <= MAX_REFERENCE][:MAX_REPORTED]
    rows = [{"host": host, "reference": reference} for reference in noted]
    if rows:
        session.execute(insert(HeldImage), rows)


def hosts_with(session: Session, images: Collection[str]) -> int:
    """How many hosts with a living worker have one of these images."""
    living = select(Worker.host).where(Worker.seen_at >= now(-WORKER_SILENT_SECONDS))
    count = select(func.count(HeldImage.host.distinct())).where(
        HeldImage.reference.in_([canonical(image) for image in images]), HeldImage.host.in_(living)
    )
    return int(session.scalar(count) or 0)
