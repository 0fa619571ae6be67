"""A ring between hosts: which queue it goes to, and what it says. Without Celery, so that anybody may ask."""

import hashlib
from dataclasses import dataclass
from urllib.parse import quote

_LONGEST_SLUG = 120
_KEPT_OF_LONGER = 100


@dataclass(frozen=True, slots=True)
class Ring:
    """One message: there is something to look at.

    Attributes:
        queue: Where it goes.
        job_id: The job that it was first sent for; others may be meant as well.
        request_id: Of the request that made this job.
    """

    queue: str
    job_id: str
    request_id: str | None


def pool_queue(machine_type: str) -> str:
    """The queue of all workers that take jobs for this machine type."""
    return f"gradient.pool.{_slug(machine_type)}"


def host_queue(worker: str) -> str:
    """The queue of one worker alone. It is named for its host, unless several run on one."""
    return f"gradient.host.{_slug(worker)}"


def _slug(name: str) -> str:
    """The name in letters, digits, `.`, `-` and `_`, of limited length: brokers differ in what else they take.

    Every name has a slug of its own: of whatever else is in it, `_` and the hexadecimal digits of its bytes are kept.
    """
    slug = quote(name, safe="").replace("_", "_5F").replace("~", "_7E").replace("%", "_")
    if len(slug) <= _LONGEST_SLUG:
        return slug
    return f"{slug[:_KEPT_OF_LONGER]}__{hashlib.sha256(name.encode()).hexdigest()[:32]}"
