"""Two ways to provision a node. Their methods raise ApiUnavailable and ApiRefused."""

from dataclasses import dataclass

from worker.backends.tpu import node_state
from worker.backends.tpu.api import FAILED, ApiRefused, Node, NodeRequest, TpuApi
from worker.backends.tpu.node_state import NodeFailure
from worker.backends.tpu.resource_inventory import NODE, QUEUED, ResourceEntry


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """State of an attempt's resource in the cloud."""

    exists: bool
    state: str
    node: Node | None = None
    failure: NodeFailure | None = None


class DirectNodeMode:
    """A node, created directly or not at all."""

    kind = NODE
    label = "node"

    def __init__(self, api: TpuApi) -> None:
        self._api = api

    def status(self, entry: ResourceEntry) -> NodeStatus:
        """Return the current state of the resource; an operation that failed late is a refusal."""
        node = self._api.node(entry.zone, entry.cloud_id)
        if node is not None:
            return NodeStatus(exists=True, state=node.state, node=node, failure=node_state.permanent_failure(node))
        if entry.operation is None:
            return NodeStatus(exists=False, state="absent")
        if self._api.check_operation(entry.operation):
            # Created and deleted again; or created just between the two queries.
            node = self._api.node(entry.zone, entry.cloud_id)
            if node is None:
                return NodeStatus(exists=True, state="GONE", failure=node_state.deleted_node(entry.name))
            return NodeStatus(exists=True, state=node.state, node=node, failure=node_state.permanent_failure(node))
        return NodeStatus(exists=True, state="CREATING")

    def create(self, zone: str, request: NodeRequest, seconds: float) -> str | None:
        del seconds  # it does not wait for capacity
        return self._api.create_node(zone, request)


class QueuedResourceMode:
    """A queued resource, which creates a node when there is capacity."""

    kind = QUEUED
    label = "queued resource"

    def __init__(self, api: TpuApi) -> None:
        self._api = api

    def status(self, entry: ResourceEntry) -> NodeStatus:
        queued = self._api.queued(entry.zone, entry.cloud_id)
        if queued is None:
            return NodeStatus(exists=False, state="absent")
        if queued.error is not None:
            raise queued.error
        failure = node_state.suspension(queued)
        if failure is not None or queued.state in node_state.QUEUED_STATES:
            return NodeStatus(exists=True, state=queued.state, failure=failure)
        if queued.state != "ACTIVE":
            raise ApiRefused(FAILED, f"queued resource {entry.name} is {queued.state}")
        node = self._api.node(entry.zone, entry.cloud_id)
        if node is None:
            return NodeStatus(exists=True, state=queued.state, failure=node_state.deleted_node(entry.name))
        return NodeStatus(exists=True, state=node.state, node=node, failure=node_state.permanent_failure(node))

    def create(self, zone: str, request: NodeRequest, seconds: float) -> str | None:
        return self._api.create_queued(zone, request, seconds)


ProvisioningMode = DirectNodeMode | QueuedResourceMode
