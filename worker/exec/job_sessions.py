import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from core.db.models.jobs import Job
from worker.runner.sessions import ENDED
from worker.runner.streams import ExecRefused, JobStream

MAX_SESSIONS = 256  # most sessions and port connections of one worker
WORKER_GONE = "The job continues, but its worker is restarting or has lost it. Enter it again in a few seconds."
STOPPING = "The job is being stopped."


@dataclass(slots=True, eq=False)
class Session:
    id: str
    key_id: str
    port: int | None = None  # the port whose connections it allows; None: it is not a port session
    parent: str | None = None  # id of the port session that it is a connection of, or None
    stream: JobStream | None = None  # what runs in the job, or None
    ended: str | None = None
    ending: threading.Event = field(default_factory=threading.Event)  # set with `ended`

    def end(self, text: str) -> None:
        self.ended = self.ended or text
        self.ending.set()
        if self.stream is not None:
            self.stream.close()


@dataclass(slots=True)
class _OpenJob:
    job: Job
    sessions: dict[str, Session] = field(default_factory=dict)
    closed: str | None = None  # reason that no session may begin any more


class JobSessions:
    """The sessions of one worker. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[str, _OpenJob] = {}

    @contextmanager
    def allowed(self, job: Job) -> Iterator[None]:
        """Allow sessions in a job during the block; those that are left at its end are ended."""
        with self._lock:
            self._jobs[job.id] = _OpenJob(job)
        text = WORKER_GONE
        try:
            yield
            text = ENDED
        finally:
            self.end(job.id, text)
            with self._lock:
                self._jobs.pop(job.id, None)

    def end(self, job_id: str, text: str) -> None:
        with self._lock:
            opened = self._jobs.get(job_id)
            if opened is None:
                return
            opened.closed = text
            sessions = list(opened.sessions.values())
        for session in sessions:
            # Each in a thread: a command that ignores SIGHUP is waited for, and the job's end must not be.
            threading.Thread(target=session.end, args=(text,), name=f"end-{session.id}", daemon=True).start()

    def in_use(self, job_id: str) -> bool:
        """Return whether somebody is in a job, or connected to a port of it."""
        with self._lock:
            opened = self._jobs.get(job_id)
            sessions = list(opened.sessions.values()) if opened is not None else []
        return any(session.stream is not None for session in sessions)

    @contextmanager
    def session(self, request: dict[str, Any], session: Session) -> Iterator[Job]:
        """Add a session during the block; yield its job.

        Raises `ExecRefused`: the job is not entered here, or under another lease, or there are too many sessions.
        """
        job_id = request["job"]
        with self._lock:
            opened = self._jobs.get(job_id)
            if opened is None or opened.job.lease != request["lease"]:
                raise ExecRefused("The job's worker has just changed, or the job has ended. Try again.")
            if opened.closed is not None:
                raise ExecRefused(opened.closed)
            if sum(len(opened_job.sessions) for opened_job in self._jobs.values()) >= MAX_SESSIONS:
                raise ExecRefused(f"The job's worker has {MAX_SESSIONS} sessions, which is its limit. Try again later.")
            if session.parent is not None:
                parent = opened.sessions.get(session.parent)
                if parent is None or parent.port is None or parent.key_id != session.key_id:
                    raise ExecRefused("The port session of this connection has ended.")
                session.port = parent.port
            opened.sessions[session.id] = session
            job = opened.job
        try:
            yield job
        finally:
            with self._lock:
                opened.sessions.pop(session.id, None)
                connections = [
                    session_open for session_open in opened.sessions.values() if session_open.parent == session.id
                ]
            for connection in connections:
                connection.end("The port session has ended.")
