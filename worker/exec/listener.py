"""Takes exec sessions from the service, at a Unix socket in the folder that both share, and runs them.

Whoever can connect may enter every job of this worker: only the service's own user can, and jobs see neither the folder
nor, in containers, its files.
"""

import logging
import socket
import threading
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from core.db.models.jobs import Job
from core.jobs.exec import channel
from core.monitoring.logging import bind
from worker.backends.job_exec import ExecBackend
from worker.context import WorkerContext
from worker.exec.job_sessions import Session
from worker.runner.sessions import KILLED, LINGER_SECONDS, accept_all, carry
from worker.runner.streams import ExecRefused, ExecRequest, JobStream
from worker.service_link.tunnel import ServiceTunnel

logger = logging.getLogger(__name__)

_END_SECONDS = 2.0
_REQUEST_SECONDS = 10.0


class ExecListener:
    """Accepts sessions in a thread, and runs each in threads of its own."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._socket: socket.socket | None = None
        self._tunnel = None if context.link is None else ServiceTunnel(context, context.link)

    def start(self) -> None:
        """Listen, unless this installation allows no sessions."""
        if not self._context.settings.exec.enabled:
            return
        try:
            # The supervisor holds the lock of this name: no other worker of this host listens here.
            listener = channel.listen(self._context.settings.root, self._context.worker_name)
        except OSError as error:
            logger.warning("exec_not_available: users cannot enter this worker's jobs", extra={"why": str(error)})
            return
        self._socket = listener
        threading.Thread(
            target=accept_all, args=(listener, self._serve, "exec-session"), name="exec", daemon=True
        ).start()
        if self._tunnel is not None:
            self._tunnel.start()

    def stop(self) -> None:
        if self._tunnel is not None:
            self._tunnel.stop()
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                connection.settimeout(_REQUEST_SECONDS)
                frame = channel.receive(connection)
                connection.settimeout(None)
                if frame is not None:
                    self._run(connection, channel.decode_control(frame[1]))
            except (OSError, channel.ChannelBroken):
                logger.debug("exec_channel_lost", exc_info=True)
            except Exception:  # one session must not end the others
                logger.exception("exec_failed")

    def _run(self, connection: socket.socket, request: dict[str, Any]) -> None:
        session = Session(request["session"], request["key"], request.get("port"), request.get("parent"))
        with ExitStack() as stack:
            try:
                job = stack.enter_context(self._context.sessions.session(request, session))
                bind(**job.log_context())
                stream = self._open(job, session, request)
            except ExecRefused as error:
                connection.sendall(channel.encode_control({"refused": str(error)}))
                return
            if stream is not None:
                stack.callback(stream.close)
                session.stream = stream
                if session.ending.is_set():  # meanwhile, so that nobody closed it
                    stream.close()
            feeder = carry(
                connection, stream, partial(session.end, "The client disconnected."), partial(_find_end, session)
            )
        feeder.join(LINGER_SECONDS)

    def _open(self, job: Job, session: Session, request: dict[str, Any]) -> JobStream | None:
        """Start the command, or connect to the port; None for a port session, which only allows connections."""
        backend = self._context.backend(job.backend)
        handle = self._context.scratch(job.id, job.attempt).own_handle(job.handle)
        if not isinstance(backend, ExecBackend):
            raise ExecRefused(f"The backend {job.backend!r} does not support exec sessions.")
        if session.port is None:
            return backend.run_in_job(handle, ExecRequest.of(request))
        if session.parent is None and not request.get("direct"):
            return None
        return backend.connect_to_job(handle, session.port, session.id)


def _find_end(session: Session) -> dict[str, object]:
    """Wait for the end of a session that only allows connections; return its last message."""
    code = 0
    if session.stream is None:
        session.ending.wait()
    elif not session.ending.is_set():
        try:
            code = session.stream.exit_code()
        except ExecRefused as error:
            session.end(str(error))
    if code == KILLED:  # perhaps by the end of its job, which the worker learns in a moment
        session.ending.wait(_END_SECONDS)
    return {"exit": code} if session.ended is None else {"ended": session.ended}
