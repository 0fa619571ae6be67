"""Limits per API key: requests and submissions a minute, queued jobs, and slots for expensive requests.

Over a limit, the response is 429 with the limit, its setting and a time to retry. Each API process counts rates and
slots separately, of which it gets its share; queued jobs are counted in the database.
"""

import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import anyio
from sqlalchemy import ScalarSelect, func, literal, select
from sqlalchemy.orm import Session

from core.db.models.jobs import IS_QUEUED, Job
from core.db.turns import take_turn
from core.errors import LimitReached
from core.settings.limits import LimitSettings

_WINDOW_SECONDS = 60.0
_MAX_IDLE_KEYS = 4096
_QUEUE_RETRY_SECONDS = 30.0
_SLOT_RETRY_SECONDS = 5.0
_SLOT_WAIT_SECONDS = 20.0  # below the 30 s after which clients and proxies usually give up
_SESSION_WAIT_SECONDS = 1.0
_TOOL_CALLS = 200  # those that wait for a job's end cost little
_EXEC_CONNECTIONS = 64  # a notebook's page opens about 20; each costs two descriptors
_GRANT_DIVISOR = 8
_GRANT_SECONDS = 30.0


def limit_reached(limit: int, of: str, setting: str | None, retry_after: float, processes: int = 1) -> LimitReached:
    """Build the error of a request over a limit.

    Args:
        of: The limited things, in the plural.
        setting: Name of its field in `LimitSettings`; None: it is no setting.
        retry_after: Seconds until a repeat may succeed.
        processes: Number of processes that share the setting; the limit's value is the share of one.
    """
    shared = f", shared by {processes} processes" if processes > 1 else ""
    name = f" (GRADIENT_LIMITS__{setting.upper()}{shared})" if setting else ""
    return LimitReached(f"Limit reached: {limit:,} {of}{name}.", retry_after)


class RateLimit:
    """A token bucket for each key: full at first, refilled evenly over a minute.

    A bucket is stored as the time at which it will be full again (generic cell rate algorithm), so an idle key costs
    nothing.
    """

    def __init__(
        self,
        per_minute: int,  # size of a bucket, and tokens a minute; 0: no limit
        of: str,  # the things that tokens are for, in the plural
        setting: str,  # name of the limit's field in `LimitSettings`
        *,
        processes: int = 1,  # number of processes that share the setting
        clock: Callable[[], float] = time.monotonic,  # returns monotonic seconds
    ) -> None:
        self._per_minute = per_minute
        self._of = of
        self._setting = setting
        self._processes = processes
        self._clock = clock
        self._lock = threading.Lock()
        self._full_at: dict[str, float] = {}

    def acquire(self, key: str, count: int = 1) -> None:
        """Take so many tokens or none; of more than a bucket holds, all but the one that the request itself has."""
        if self._per_minute == 0:
            return
        wanted = max(1, min(count, self._per_minute - 1))
        interval = _WINDOW_SECONDS / self._per_minute
        now = self._clock()
        with self._lock:
            full_at = max(self._full_at.get(key, now), now)
            # The small number: rounding of a full bucket's last token.
            granted = wanted <= int((now + _WINDOW_SECONDS - full_at + 1e-9) / interval)
            if granted:
                self._full_at[key] = full_at + wanted * interval
            if len(self._full_at) > _MAX_IDLE_KEYS:
                self._full_at = {key: at for key, at in self._full_at.items() if at > now}
        if not granted:
            wait = full_at + wanted * interval - now - _WINDOW_SECONDS
            of = f"{self._of} per minute for one key"
            raise limit_reached(self._per_minute, of, self._setting, wait, self._processes)


class ConcurrencyLimit:
    """Slots per key for expensive requests; a request waits for a free one in the event loop, not in a thread."""

    def __init__(self, per_key: int, of: str, setting: str | None, *, wait_seconds: float, processes: int = 1) -> None:
        self._processes = processes
        self.per_key = per_key
        self._of = of
        self._setting = setting
        self._wait_seconds = wait_seconds
        self.used: dict[str, _KeySlots] = {}

    @asynccontextmanager
    async def slot(self, key: str) -> AsyncIterator[None]:
        if self.per_key == 0:
            yield
            return
        slot = self.used.setdefault(key, _KeySlots(anyio.Semaphore(self.per_key)))
        slot.users += 1
        try:
            with anyio.move_on_after(self._wait_seconds) as waiting:
                await slot.free.acquire()
            if waiting.cancelled_caught:
                of = f"{self._of} at once for one key"
                raise limit_reached(self.per_key, of, self._setting, _SLOT_RETRY_SECONDS, self._processes)
            try:
                yield
            finally:
                slot.free.release()
        finally:
            slot.users -= 1
            if not slot.users:
                self.used.pop(key, None)


@dataclass(slots=True)
class _KeySlots:
    """The slots of one key, and the number of requests that use or await one."""

    free: anyio.Semaphore
    users: int = 0


class QueueLimit:
    """Limits of the number of queued jobs, per key and per project.

    The database counts, at most up to the limit. Far below a limit, not every submission is counted: after a count this
    process grants an eighth of the free number for half a minute without another one. With several API processes every
    transaction counts, one after another.
    """

    def __init__(self, settings: LimitSettings, processes: int = 1) -> None:
        self.counts_always = processes > 1
        self._settings = settings
        self._lock = threading.Lock()
        self._granted: dict[tuple[str, str], tuple[int, float]] = {}

    def admission(self, session: Session) -> "QueueAdmission":
        """Return the admission of the jobs that one transaction creates."""
        return QueueAdmission(self, session)

    def scopes(self, submitted_by: str, project_id: str) -> list["_QueueScope"]:
        scopes = (
            _QueueScope("one key", submitted_by, self._settings.queued_per_key),
            _QueueScope("one project", project_id, self._settings.queued_per_project),
        )
        return [scope for scope in scopes if scope.limit]

    def store_grant(self, scope: "_QueueScope", count: int) -> None:
        """Let this many jobs in without another count."""
        with self._lock:
            if len(self._granted) > _MAX_IDLE_KEYS:
                self._granted.clear()
            self._granted[scope.of, scope.owner] = (count, time.monotonic() + _GRANT_SECONDS)

    def use_grant(self, scope: "_QueueScope") -> bool:
        """Use up one job of a grant; returns whether there was one."""
        which = (scope.of, scope.owner)
        with self._lock:
            left, until = self._granted.get(which, (0, 0.0))
            if left <= 0 or time.monotonic() >= until:
                return False
            self._granted[which] = (left - 1, until)
            return True


class _QueueScope(NamedTuple):
    """The queued jobs of one key or project, and how many there may be."""

    of: str
    owner: str
    limit: int

    def count_query(self) -> ScalarSelect[int]:
        owned = (Job.submitted_by if self.of == "one key" else Job.project_id) == self.owner
        limited = select(literal(1)).where(IS_QUEUED, owned).limit(self.limit).subquery()
        return select(func.count()).select_from(limited).scalar_subquery()


class QueueAdmission:
    """Admits the jobs that one transaction creates, before they are inserted, as far as the limits allow."""

    def __init__(self, limit: QueueLimit, session: Session) -> None:
        self._limit = limit
        self._session = session
        self._queued: dict[_QueueScope, int] = {}
        self._admitted: Counter[_QueueScope] = Counter()

    def admit(self, submitted_by: str, project_id: str) -> None:
        scopes = self._limit.scopes(submitted_by, project_id)
        self._count([scope for scope in scopes if scope not in self._queued and not self._limit.use_grant(scope)])
        for scope in scopes:
            if self._queued.get(scope, 0) >= scope.limit:
                setting = f"queued_per_{scope.of.removeprefix('one ')}"
                raise limit_reached(scope.limit, f"queued jobs of {scope.of}", setting, _QUEUE_RETRY_SECONDS)
        for scope in scopes:
            self._admitted[scope] += 1
            if scope in self._queued:
                self._queued[scope] += 1
                if not self._limit.counts_always:
                    self._limit.store_grant(scope, (scope.limit - self._queued[scope]) // _GRANT_DIVISOR)

    def _count(self, scopes: list[_QueueScope]) -> None:
        if scopes:
            if self._limit.counts_always:
                take_turn(self._session, "submissions")
            counts = self._session.execute(select(*(scope.count_query() for scope in scopes))).one()
            # Jobs admitted before, by grants, are not inserted yet.
            self._queued |= {scope: count + self._admitted[scope] for scope, count in zip(scopes, counts, strict=True)}


class Limits:
    """Every limit of one API process."""

    def __init__(
        self, settings: LimitSettings, processes: int = 1, *, wait_seconds: float = _SLOT_WAIT_SECONDS
    ) -> None:
        self.settings = settings
        rate = partial(RateLimit, processes=processes)
        self.requests = rate(settings.requests_per_minute, "requests", "requests_per_minute")
        self.submissions = rate(settings.submissions_per_minute, "submissions", "submissions_per_minute")
        self.queue = QueueLimit(settings, processes)  # checked for each new job
        slots = partial(ConcurrencyLimit, processes=processes, wait_seconds=wait_seconds)
        self.searches = slots(settings.searches, "searches", "searches")
        # slots for submissions with an archive, which is checked during the request
        self.uploads = slots(settings.uploads, "uploads", "uploads")
        slots = partial(slots, wait_seconds=min(wait_seconds, _SESSION_WAIT_SECONDS))
        self.exec_sessions = slots(settings.exec_sessions, "exec sessions", "exec_sessions")
        # ssh is served by the first process alone, which has the shares of all.
        whole = partial(slots, settings.exec_sessions * processes, processes=1)
        self.ssh_sessions = self.exec_sessions if processes == 1 else whole("ssh sessions", "exec_sessions")
        self.tool_calls = slots(-(-_TOOL_CALLS // processes), "calls of agents' tools", None)
        self.exec_connections = slots(_EXEC_CONNECTIONS, "connections to jobs' ports", None)
