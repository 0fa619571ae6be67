"""A simulated Google Cloud project with TPUs: its nodes, queued resources and operations, and their transitions.

Time-dependent states are computed on access, so nothing runs in the background. The messages are google-cloud-tpu's.
"""

import itertools
import threading
import time
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import grpc
from google.cloud import tpu_v2
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, empty_pb2
from google.rpc import code_pb2, status_pb2

from gradient_server.simulator.tpu.vms import SimulatedVms

T = TypeVar("T")

# As Any: their values are declared as plain ints, which the messages' fields do not accept.
NodeState: Any = tpu_v2.Node.State
Health: Any = tpu_v2.Node.Health
QueuedState: Any = tpu_v2.QueuedResourceState.State
Initiator: Any = tpu_v2.QueuedResourceState.StateInitiator

_V2: Any = tpu_v2.Node.ApiVersion.V2

DENIED = (
    "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture or contact Cloud TPU "
    "team to gain TPU Node access."
)
NO_CAPACITY = "There is no more capacity in the zone {zone!r}; you can try in another zone."
_NAMED_BY_CHIPS = frozenset({"v5litepod", "v6e"})
"""Generations whose types are named by chips; the others' are named by cores, of which a chip has two."""
_USABLE = frozenset({NodeState.CREATING, NodeState.READY, NodeState.RESTARTING, NodeState.REPAIRING})


class TpuApiError(Exception):
    """An error response of the API, with Google's error code, and the seconds after which to ask again, if any."""

    def __init__(self, code: grpc.StatusCode, message: str, reason: str = "", delay: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.reason = reason
        self.delay = delay


@dataclass(slots=True)
class _Operation:
    message: operations_pb2.Operation
    due: float
    result: Any
    error: status_pb2.Status | None = None


@dataclass(slots=True)
class _PendingResource:
    """A queued resource and the time until which it waits."""

    message: tpu_v2.QueuedResource
    valid_until: float | None


@dataclass
class TpuProject:
    device: tuple[str, int] = ("127.0.0.1", 8470)  # (address, port) that every simulated node reports as its endpoint
    create_seconds: float = 0.0
    capacity: dict[str, int] = field(default_factory=dict)  # number of nodes by zone; `room` in zones not listed
    room: int = 100
    # accelerator types by zone; a zone that is not listed offers all
    offered: dict[str, list[str]] = field(default_factory=dict)
    endpoints: int | None = None  # number of endpoints of every node; None: as many as it has hosts
    delete_seconds: float = 0.0
    stuck: set[str] = field(default_factory=set)  # full names of queued resources that stay DELETING, with their nodes
    deny_tpu_node: bool = False  # refuse every request for a node, as Google refuses the TPU Node architecture
    # errors that the next operations end with, after their calls succeeded
    late_errors: list[tuple[grpc.StatusCode, str]] = field(default_factory=list)
    machines: SimulatedVms | None = None  # runs the nodes' startup scripts; None: they are not run
    # everything created and deleted, in order, such as `("created", "nodes/x")`
    record: list[tuple[str, str]] = field(default_factory=list)
    # when the bill of each node began (READY) and ended (deleted, preempted), as Unix time, by node id
    bills: dict[str, list[float]] = field(default_factory=dict)
    clock_ahead: float = 0.0  # seconds by which the cloud's clock is ahead of this computer's
    # time after which a flex-start node is to be deleted, by the id of its queued resource
    run_seconds: dict[str, float] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    _nodes: dict[str, tpu_v2.Node] = field(default_factory=dict)
    _ready_at: dict[str, float] = field(default_factory=dict)
    _gone_at: dict[str, float] = field(default_factory=dict)
    _queued: dict[str, _PendingResource] = field(default_factory=dict)
    _operations: dict[str, _Operation] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _slices: Iterator[int] = field(default_factory=itertools.count)

    # ---- Methods of the API

    def node(self, name: str) -> tpu_v2.Node:
        self._advance()
        return _get_existing(self._nodes, name)

    def nodes(self, parent: str) -> list[tpu_v2.Node]:
        """List the nodes of a zone, or of all zones (`-`)."""
        self._advance()
        return [node for name, node in sorted(self._nodes.items()) if _is_in_zone(name, parent)]

    def create_node(self, parent: str, node_id: str, node: tpu_v2.Node) -> operations_pb2.Operation:
        self._advance()
        if self.deny_tpu_node:
            raise TpuApiError(grpc.StatusCode.FAILED_PRECONDITION, DENIED)
        name = f"{parent}/nodes/{node_id}"
        _check_absent(self._nodes, name)
        self._check_type(parent, node)
        if not self._has_room(parent):
            raise TpuApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, NO_CAPACITY.format(zone=_zone_name(parent)))
        self._add_node(parent, node_id, node)
        return self._add_operation(name, self._ready_at[name], self._nodes[name])

    def delete_node(self, name: str) -> operations_pb2.Operation:
        self._advance()
        _get_existing(self._nodes, name)
        self._begin_deletion(name)
        return self._add_operation(name, 0.0, empty_pb2.Empty())

    def queued_resource(self, name: str) -> tpu_v2.QueuedResource:
        self._advance()
        return _get_existing(self._queued, name).message

    def queued_resources(self, parent: str) -> list[tpu_v2.QueuedResource]:
        self._advance()
        return [resource.message for name, resource in sorted(self._queued.items()) if _is_in_zone(name, parent)]

    def create_queued(self, parent: str, queued_id: str, request: tpu_v2.QueuedResource) -> operations_pb2.Operation:
        """Create a queued resource and return the operation, which does not wait for its nodes."""
        self._advance()
        name = f"{parent}/queuedResources/{queued_id}"
        _check_absent(self._queued, name)
        self._check_type(parent, request.tpu.node_spec[0].node)
        message = tpu_v2.QueuedResource(request)
        message.name, message.create_time = name, datetime.now(UTC)
        message.state = tpu_v2.QueuedResourceState(state=QueuedState.ACCEPTED)
        until: timedelta = message.queueing_policy.valid_until_duration
        expires = time.monotonic() + until.total_seconds() if until else None
        self._queued[name] = _PendingResource(message, expires)
        self.record.append(("created", f"queuedResources/{queued_id}"))
        return self._add_operation(name, 0.0, message)

    def delete_queued(self, name: str, *, force: bool) -> operations_pb2.Operation:
        """Delete a queued resource, with `force` also its nodes, and return the operation."""
        self._advance()
        waiting = _get_existing(self._queued, name)
        nodes = [node for node in self._nodes.values() if node.queued_resource == name]
        if nodes and not force:
            raise TpuApiError(grpc.StatusCode.FAILED_PRECONDITION, f"{name} has nodes; delete them first or use force.")
        waiting.message.state = tpu_v2.QueuedResourceState(state=QueuedState.DELETING)
        if name not in self.stuck:
            for node in nodes:
                self._begin_deletion(node.name)
            self._remove_deleted_queued()
        return self._add_operation(name, 0.0, empty_pb2.Empty())

    def operation(self, name: str) -> operations_pb2.Operation:
        self._advance()
        return _get_existing(self._operations, name).message

    # ---- Controls of the simulation

    def preempt(self, node_id: str) -> None:
        self.set_state(node_id, NodeState.PREEMPTED)

    def set_state(self, node_id: str, state: tpu_v2.Node.State) -> None:
        with self.lock:
            node = self._node_by_id(node_id)
            node.state = state
            if state not in _USABLE:
                self._end_bill(node.name)
                if self.machines is not None:
                    self.machines.end(node.name)

    def set_health(self, node_id: str, health: tpu_v2.Node.Health, why: str = "") -> None:
        with self.lock:
            self._node_by_id(node_id).health = health
            self._node_by_id(node_id).health_description = why

    def suspend(self, queued_id: str, *, by_user: bool) -> None:
        """Suspend a queued resource: its nodes are deleted."""
        with self.lock:
            (name,) = (name for name in self._queued if _short_name(name) == queued_id)
            for node in [node for node in self._nodes.values() if node.queued_resource == name]:
                self._remove_node(node.name)
            self._queued[name].message.state = tpu_v2.QueuedResourceState(
                state=QueuedState.SUSPENDED, state_initiator=Initiator.USER if by_user else Initiator.SERVICE
            )

    def remaining_resources(self) -> tuple[list[str], list[str]]:
        """Return the names of the existing nodes and queued resources."""
        with self.lock:
            self._advance()
            return sorted(self._nodes), sorted(self._queued)

    # ---- Transitions

    def _advance(self) -> None:
        current = time.monotonic()
        for name, gone_at in list(self._gone_at.items()):
            if current >= gone_at:
                self._remove_node(name)
        self._remove_deleted_queued()
        for waiting in self._queued.values():
            self._advance_queued(waiting, current)
        for name, ready_at in list(self._ready_at.items()):
            if current >= ready_at:
                self._finish_creation(name)
        for operation in self._operations.values():
            if not operation.message.done and current >= operation.due:
                _complete(operation)

    def _finish_creation(self, name: str) -> None:
        """End the creation of a node: it becomes READY, or is dropped by a late error."""
        del self._ready_at[name]
        error = next(
            (
                operation.error
                for key, operation in self._operations.items()
                if operation.error and _is_operation_of(key, name)
            ),
            None,
        )
        if error is not None:
            self._remove_node(name)
            return
        node = self._nodes[name]
        if node.state == NodeState.CREATING:
            node.state, node.health = NodeState.READY, Health.HEALTHY
            self.bills[_short_name(name)] = [time.time()]
            hosts = host_count(node.accelerator_type) if self.endpoints is None else self.endpoints
            addresses = self._addresses(hosts)
            node.network_endpoints = [
                tpu_v2.NetworkEndpoint(ip_address=address, port=self.device[1]) for address in addresses
            ]
            if self.machines is not None:
                self.machines.start(name, node.metadata.get("startup-script", ""), len(addresses))

    def _addresses(self, hosts: int) -> list[str]:
        """Return an address of this computer for each host; the hosts of a slice need different ones."""
        if hosts == 1:
            return [self.device[0]]
        net = next(self._slices) % 250
        return [f"127.{100 + host // 250}.{net + 1}.{host % 250 + 1}" for host in range(hosts)]

    def _advance_queued(self, waiting: _PendingResource, current: float) -> None:
        message, state = waiting.message, waiting.message.state.state
        if state in {QueuedState.ACCEPTED, QueuedState.WAITING_FOR_RESOURCES}:
            spec = message.tpu.node_spec[0]
            if waiting.valid_until is not None and current >= waiting.valid_until:
                _mark_failed(
                    message, status_pb2.Status(code=code_pb2.DEADLINE_EXCEEDED, message="It was not valid any more.")
                )
            elif not self._has_room(spec.parent):
                message.state = tpu_v2.QueuedResourceState(state=QueuedState.WAITING_FOR_RESOURCES)
            elif self.late_errors:
                code, text = self.late_errors.pop(0)
                _mark_failed(message, status_pb2.Status(code=code.value[0], message=text))
            else:
                self._add_node(spec.parent, spec.node_id, spec.node, queued=message.name)
                message.state = tpu_v2.QueuedResourceState(state=QueuedState.PROVISIONING)
        elif state == QueuedState.PROVISIONING:
            made = [node for node in self._nodes.values() if node.queued_resource == message.name]
            if made and all(node.state != NodeState.CREATING for node in made):
                message.state = tpu_v2.QueuedResourceState(state=QueuedState.ACTIVE)

    def _has_room(self, parent: str) -> bool:
        busy = sum(_is_in_zone(name, parent) and node.state in _USABLE for name, node in self._nodes.items())
        return busy < self.capacity.get(_zone_name(parent), self.room)

    def _add_node(self, parent: str, node_id: str, request: tpu_v2.Node, *, queued: str = "") -> None:
        name = f"{parent}/nodes/{node_id}"
        node = tpu_v2.Node(request)
        node.name, node.queued_resource = name, queued
        node.create_time = datetime.now(UTC) + timedelta(seconds=self.clock_ahead)
        node.state, node.api_version = NodeState.CREATING, _V2
        self._nodes[name] = node
        self._ready_at[name] = time.monotonic() + self.create_seconds
        self.record.append(("created", f"nodes/{node_id}"))

    def _check_type(self, parent: str, node: tpu_v2.Node) -> None:
        zone = _zone_name(parent)
        if zone in self.offered and node.accelerator_type not in self.offered[zone]:
            message = f"the accelerator {node.accelerator_type} was not found in zone {zone}"
            raise TpuApiError(grpc.StatusCode.INVALID_ARGUMENT, message)

    def _begin_deletion(self, name: str) -> None:
        if not self.delete_seconds:
            self._remove_node(name)
        else:
            self._nodes[name].state = NodeState.DELETING
            self._gone_at.setdefault(name, time.monotonic() + self.delete_seconds)

    def _remove_deleted_queued(self) -> None:
        """Drop the queued resources whose deletion was requested and whose nodes are gone."""
        kept = self.stuck | {node.queued_resource for node in self._nodes.values()}
        for name, waiting in list(self._queued.items()):
            if waiting.message.state.state == QueuedState.DELETING and name not in kept:
                del self._queued[name]
                self.record.append(("deleted", f"queuedResources/{_short_name(name)}"))

    def _end_bill(self, name: str) -> None:
        bill = self.bills.get(_short_name(name), [])
        bill[1:] = bill[1:] or [time.time()] * len(bill)

    def _remove_node(self, name: str) -> None:
        del self._nodes[name]
        self._ready_at.pop(name, None)
        self._gone_at.pop(name, None)
        self._end_bill(name)
        if self.machines is not None:
            self.machines.end(name)
        self.record.append(("deleted", f"nodes/{_short_name(name)}"))

    def _add_operation(self, name: str, due: float, result: Any) -> operations_pb2.Operation:  # noqa: ANN401 - any message
        message = operations_pb2.Operation(
            name=f"{_zone_path(name)}/operations/operation-{next(self._numbers)}-{_short_name(name)}"
        )
        error = None
        if self.late_errors and due:
            code, text = self.late_errors.pop(0)
            error = status_pb2.Status(code=code.value[0], message=text)
        self._operations[message.name] = _Operation(message, due, result, error)
        return message

    def _node_by_id(self, node_id: str) -> tpu_v2.Node:
        self._advance()
        (node,) = (node for name, node in self._nodes.items() if _short_name(name) == node_id)
        return node


def host_count(accelerator_type: str) -> int:
    """Return the number of virtual machines of a slice: of four chips each, if it is larger than one of eight cores."""
    generation, _, size = accelerator_type.rpartition("-")
    if not size.isdigit():  # a node of a pool that states no type
        return 1
    chips = int(size) // (1 if generation in _NAMED_BY_CHIPS else 2)
    return chips // 4 if int(size) > 8 else 1  # noqa: PLR2004 - eight is the most of one host, chips or cores


def _complete(operation: _Operation) -> None:
    operation.message.done = True
    if operation.error is not None:
        operation.message.error.CopyFrom(operation.error)
        return
    packed = any_pb2.Any()
    result = operation.result
    packed.Pack(type(result).pb(result) if hasattr(type(result), "pb") else result)
    operation.message.response.CopyFrom(packed)


def _mark_failed(message: tpu_v2.QueuedResource, error: status_pb2.Status) -> None:
    failed = tpu_v2.QueuedResourceState.FailedData(error=error)
    message.state = tpu_v2.QueuedResourceState(state=QueuedState.FAILED, failed_data=failed)


def _get_existing(things: dict[str, T], name: str) -> T:
    if name not in things:
        raise TpuApiError(grpc.StatusCode.NOT_FOUND, f"Resource {name!r} was not found")
    return things[name]


def _check_absent(things: Container[str], name: str) -> None:
    if name in things:
        raise TpuApiError(grpc.StatusCode.ALREADY_EXISTS, f"Resource {name!r} already exists")


def _is_in_zone(name: str, parent: str) -> bool:
    everywhere, _, zone = parent.rpartition("/")
    return name.startswith(f"{everywhere}/" if zone == "-" else f"{parent}/")


def _is_operation_of(operation: str, node: str) -> bool:
    return operation.startswith(f"{_zone_path(node)}/") and operation.endswith(f"-{_short_name(node)}")


def _zone_path(name: str) -> str:
    return name.rsplit("/", 2)[0]


def _zone_name(parent: str) -> str:
    return parent.split("/")[3]


def _short_name(name: str) -> str:
    return name.rpartition("/")[2]
