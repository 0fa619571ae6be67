"""The parts of an attempt that the nodes of a job do together: they meet, start at once, and are closed at once."""

import json
import zlib
from collections.abc import Callable
from contextlib import suppress

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs.scheduling.nodes import all_ended, first_node, may_launch
from worker.attempt.control import AttemptControl
from worker.backends.base import PortForward
from worker.backends.job_connections import LOOPBACK
from worker.backends.port_check import check_ports_free
from worker.context import WorkerContext

_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS = 0.02, 1.0
_FIRST_PORT, _PORTS = 10_000, 20_000  # below those that the kernel gives to connections


def wait_until_all_may_launch(
    context: WorkerContext, job: Job, control: AttemptControl, check: Callable[[], None]
) -> None:
    """Wait, prepared, until all other nodes are; `check`: raises if the start must be aborted."""
    if job.array_index == 0 and not context.backend(job.backend).capabilities.own_network:
        check_ports_free(LOOPBACK, [PortForward(port, port) for port in _ports(job)])
    _wait(context, job, control, may_launch, check)


def wait_until_all_ended(context: WorkerContext, job: Job, control: AttemptControl) -> None:
    """Wait until the commands of all nodes have ended: they are closed alike, or run again together."""
    _wait(context, job, control, all_ended, control.check)


def _wait(
    context: WorkerContext,
    job: Job,
    control: AttemptControl,
    condition: Callable[[Session, Job], bool],
    check: Callable[[], None],
) -> None:
    context.notify_host()  # the state of this node may be what the others wait for
    pause = _FIRST_PAUSE_SECONDS
    while True:
        check()
        with suppress(StoreUnavailable), context.database.read() as session:
            if condition(session, job):
                return
        control.pause(pause)
        pause = min(2 * pause, _PAUSE_SECONDS)


def find_first_node(context: WorkerContext, job: Job) -> tuple[str, int] | None:
    """Return job and attempt of the node of rank 0; None: it is this one, or the job is no node."""
    if not job.array_index or job.nodes is None:
        return None
    with context.database.read() as session:
        first = first_node(session, job)
    return first.id, first.attempt


def _ports(job: Job) -> list[int]:
    """Return the ports at which the nodes of a job meet: that of the first for all, then one for each.

    Other attempts and other jobs have other ones, for where they share a network.
    """
    first = _FIRST_PORT + zlib.crc32(f"{job.array_id} {job.attempt}".encode()) % _PORTS
    return list(range(first, first + 1 + (job.nodes or 0)))


def node_environment(job: Job) -> dict[str, str]:
    """Build the variables by which the nodes of a job find each other; those of the job replace them."""
    if job.nodes is None:
        return {}
    port, *own = _ports(job)
    rank = str(job.array_index)
    task = {"type": "worker", "index": job.array_index}
    return {
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "RANK": rank,
        "NODE_RANK": rank,
        "WORLD_SIZE": str(job.nodes),
        "TF_CONFIG": json.dumps({"cluster": {"worker": [f"{LOOPBACK}:{one}" for one in own]}, "task": task}),
        # Else libraries look for the interface of the host's name, which is not in a sandbox.
        **dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo"),
    }
