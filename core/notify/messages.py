"""Wake messages between hosts and the names of their queues. Does not import Celery."""

import hashlib
from dataclasses import dataclass
from urllib.parse import quote

_MAX_SLUG = 120
_TRUNCATED_SLUG = 100


@dataclass(frozen=True, slots=True)
class WakeMessage:
    queue: str
    job_id: str  # the first job that the message was sent for; it may announce others as well
    request_id: str | None


def machine_type_queue(machine_type: str) -> str:
    """Return the queue shared by all workers that take jobs of this machine type."""
    return f"gradient.pool.{_queue_slug(machine_type)}"


def worker_queue(worker: str) -> str:
    return f"gradient.host.{_queue_slug(worker)}"


def _queue_slug(name: str) -> str:
    """Encode a name in letters, digits, `.`, `-` and `_`, of limited length: brokers differ in what else they accept.

    Different names have different slugs: other bytes become `_` and their hexadecimal digits.
    """
    slug = quote(name, safe="").replace("_", "_5F").replace("~", "_7E").replace("%", "_")
    if len(slug) <= _MAX_SLUG:
        return slug
    return f"{slug[:_TRUNCATED_SLUG]}__{hashlib.sha256(name.encode()).hexdigest()[:32]}"
