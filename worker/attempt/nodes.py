"""The parts of an attempt that the nodes of a job do together: they meet, start at once, and are closed at once."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import NamedTuple

from sqlalchemy.orm import Session

from core.db.models.jobs import Job
from core.errors import StoreUnavailable
from core.jobs.scheduling.nodes import addresses, all_ended, first_node, may_launch
from worker.attempt.control import AttemptControl
from worker.backends.base import LaunchError, PortForward
from worker.backends.job_connections import LOOPBACK
from worker.backends.node_variables import describe_nodes, interface_of
from worker.backends.port_check import check_ports_free
from worker.context import WorkerContext

_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS = 0.02, 1.0


class NodePlaces(NamedTuple):
    """Places of the nodes of a job; none of a job without nodes."""

    addresses: Sequence[str] = ()  # by rank
    first: tuple[str, int] | None = None  # job and attempt of rank 0 whose network this one joins
    several_hosts: bool = False  # then each is in its host's network


def find_places(context: WorkerContext, job: Job) -> NodePlaces:
    if job.nodes is None:
        return NodePlaces()
    with context.database.read() as session:
        first, node_addresses = first_node(session, job), addresses(session, job)
    if not node_addresses:
        return NodePlaces([LOOPBACK] * job.nodes, (first.id, first.attempt) if job.rank else None)
    present = [address for address in node_addresses if address is not None]
    if len(present) < len(node_addresses):
        raise LaunchError(
            "launch_failed", "the worker of a node has gone, or no longer takes nodes of jobs on several machines"
        )
    return NodePlaces(present, None, several_hosts=True)


def notes(session: Session, job: Job) -> list[str]:
    """Return the note for a job's user on the network that it has as one of nodes on several hosts."""
    if job.nodes is None or not addresses(session, job):
        return []
    text = "The job's nodes are on several machines, so this one uses the network of {}: it can reach what listens "
    text += "there, and whoever reaches that machine can reach the job's ports."
    return [text.format(job.host)]


def wait_until_all_may_launch(
    context: WorkerContext, job: Job, control: AttemptControl, check: Callable[[], None], prepared: Callable[[], None]
) -> None:
    """Wait until all other nodes are prepared, too.

    `check`: raises if the start must be aborted. `prepared`: tells the others that this one is.
    """
    places = find_places(context, job)
    in_host_network = places.several_hosts or not context.backend(job.backend).capabilities.own_network
    if in_host_network and (job.rank == 0 or places.several_hosts):
        master, *ports = _ports(job)
        listens = [ports[job.rank]] if places.several_hosts else ports
        listens += [master] if job.rank == 0 else []
        check_ports_free(places.addresses[job.rank], [PortForward(port, port) for port in listens])
    prepared()
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


def _ports(job: Job) -> list[int]:
    """Return the ports at which the nodes of a job meet: that of the first for all, then one for each."""
    first = job.nodes_port or 0
    return list(range(first, first + 1 + (job.nodes or 0)))


def node_environment(job: Job, addresses: Sequence[str]) -> dict[str, str]:
    """Build the variables by which the nodes of a job find each other; those of the job replace them."""
    if job.nodes is None:
        return {}
    port, *ports = _ports(job)
    interface = interface_of(addresses[job.rank]) or "lo"
    return describe_nodes(job.rank, addresses, port, ports, interface)
