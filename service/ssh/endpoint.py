"""The ssh endpoint: where it is, and listening. asyncssh is loaded with the first connection: it takes 30 MB."""

import asyncio
import logging
import socket
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from core.catalogue.backends import capabilities_of
from core.db.models.jobs import Job
from core.jobs.exec.audit import ENTERABLE
from core.settings import Settings
from service.app_state import AppState
from service.siblings import FIRST

logger = logging.getLogger(__name__)

_RETRY_SECONDS = 5.0
_BACKLOG = 256
_INSTALLED = find_spec("asyncssh") is not None


def unavailable(settings: Settings) -> str | None:
    """Return the reason why there is no endpoint; None: there is one."""
    if not settings.exec.enabled or not settings.ssh.port:
        return "This service has no ssh endpoint (GRADIENT_EXEC__ENABLED=false or GRADIENT_SSH__PORT=0)."
    return None if _INSTALLED else "The server lacks its extra ssh: pip install 'gradient-jobs[server,ssh]'."


def host(settings: Settings) -> str:
    return settings.dashboard_host or socket.gethostname()


def job_url(job: Job, settings: Settings) -> str | None:
    """Return the link by which ssh enters a job; None: it cannot be entered now."""
    may_enter = job.state in ENTERABLE and job.stop_requested_at is None and capabilities_of(job.backend).exec
    if not may_enter or unavailable(settings):
        return None
    name = f"[{host(settings)}]" if ":" in host(settings) else host(settings)
    return f"ssh://{job.id}@{name}:{settings.ssh.port}"


async def serve(app_state: AppState) -> None:
    """Serve the endpoint until this is cancelled, in the first of the API's processes."""
    if app_state.siblings.number != FIRST or unavailable(app_state.settings):
        return
    accept: Callable[[], asyncio.Protocol] = lambda: import_module("service.ssh.connection").accept(app_state)  # noqa: E731 - of the first connection
    loop, address, refused = asyncio.get_running_loop(), app_state.settings.ssh, False
    while True:
        try:
            server = await loop.create_server(accept, address.bind, address.port, backlog=_BACKLOG)
        except OSError as error:
            if not refused:
                logger.warning("ssh_not_available: users cannot enter jobs by ssh", extra={"why": str(error)})
            refused = True
            await asyncio.sleep(_RETRY_SECONDS)  # the process before this one may still have the port
            continue
        try:
            await asyncio.Event().wait()
        finally:
            server.close()
