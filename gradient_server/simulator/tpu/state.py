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

_V2: Any = tpu_v2.Node.ApiVersion.V2

NO_CAPACITY = "There is no more capacity in the zone {zone!r}; you can try in another zone."
_NAMED_BY_CHIPS = frozenset({"v5litepod", "v6e"})
"""Generations whose types are named by chips; the others' are named by cores, of which a chip has two."""


class TpuApiError(Exception):
    """An error response of the API."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@dataclass(slots=True)
class _Operation:
    message: operations_pb2.Operation
    due: float
    result: Any


@dataclass(slots=True)
class _PendingResource:
    """A queued resource and the time until which it waits."""

    message: tpu_v2.QueuedResource
    valid_until: float | None


@dataclass
class TpuProject:
    device: tuple[str, int] = ("127.0.0.1", 8470)  # (address, port) that every simulated node reports as its endpoint
    create_seconds: float = 0.0
    room: int = 100  # number of nodes in each zone
    machines: SimulatedVms | None = None  # runs the nodes' startup scripts; None: they are not run
    lock: threading.RLock = field(default_factory=threading.RLock)
    _nodes: dict[str, tpu_v2.Node] = field(default_factory=dict)
    _ready_at: dict[str, float] = field(default_factory=dict)
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
        name = f"{parent}/nodes/{node_id}"
        _check_absent(self._nodes, name)
        if not self._has_room(parent):
            raise TpuApiError(grpc.StatusCode.RESOURCE_EXHAUSTED, NO_CAPACITY.format(zone=_zone_name(parent)))
        self._add_node(parent, node_id, node)
        return self._add_operation(name, self._ready_at[name], self._nodes[name])

    def delete_node(self, name: str) -> operations_pb2.Operation:
        self._advance()
        _get_existing(self._nodes, name)
        self._remove_node(name)
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
        message = tpu_v2.QueuedResource(request)
        message.name, message.create_time = name, datetime.now(UTC)
        message.state = tpu_v2.QueuedResourceState(state=QueuedState.ACCEPTED)
        until: timedelta = message.queueing_policy.valid_until_duration
        expires = time.monotonic() + until.total_seconds() if until else None
        self._queued[name] = _PendingResource(message, expires)
        return self._add_operation(name, 0.0, message)

    def delete_queued(self, name: str, *, force: bool) -> operations_pb2.Operation:
        """Delete a queued resource, with `force` also its nodes, and return the operation."""
        self._advance()
        waiting = _get_existing(self._queued, name)
        nodes = [node for node in self._nodes.values() if node.queued_resource == name]
        if nodes and not force:
            raise TpuApiError(grpc.StatusCode.FAILED_PRECONDITION, f"{name} has nodes; delete them first or use force.")
        waiting.message.state = tpu_v2.QueuedResourceState(state=QueuedState.DELETING)
        for node in nodes:
            self._remove_node(node.name)
        self._remove_deleted_queued()
        return self._add_operation(name, 0.0, empty_pb2.Empty())

    def operation(self, name: str) -> operations_pb2.Operation:
        self._advance()
        return _get_existing(self._operations, name).message

    # ---- Transitions

    def _advance(self) -> None:
        current = time.monotonic()
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
        del self._ready_at[name]
        node = self._nodes[name]
        if node.state == NodeState.CREATING:
            node.state, node.health = NodeState.READY, Health.HEALTHY
            addresses = self._addresses(host_count(node.accelerator_type))
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
            else:
                self._add_node(spec.parent, spec.node_id, spec.node, queued=message.name)
                message.state = tpu_v2.QueuedResourceState(state=QueuedState.PROVISIONING)
        elif state == QueuedState.PROVISIONING:
            made = [node for node in self._nodes.values() if node.queued_resource == message.name]
            if made and all(node.state != NodeState.CREATING for node in made):
                message.state = tpu_v2.QueuedResourceState(state=QueuedState.ACTIVE)

    def _has_room(self, parent: str) -> bool:
        return sum(_is_in_zone(name, parent) for name in self._nodes) < self.room

    def _add_node(self, parent: str, node_id: str, request: tpu_v2.Node, *, queued: str = "") -> None:
        name = f"{parent}/nodes/{node_id}"
        node = tpu_v2.Node(request)
        node.name, node.queued_resource = name, queued
        node.create_time = datetime.now(UTC)
        node.state, node.api_version = NodeState.CREATING, _V2
        self._nodes[name] = node
        self._ready_at[name] = time.monotonic() + self.create_seconds

    def _remove_deleted_queued(self) -> None:
        """Drop the queued resources whose deletion was requested and whose nodes are gone."""
        kept = {node.queued_resource for node in self._nodes.values()}
        for name, waiting in list(self._queued.items()):
            if waiting.message.state.state == QueuedState.DELETING and name not in kept:
                del self._queued[name]

    def _remove_node(self, name: str) -> None:
        del self._nodes[name]
        self._ready_at.pop(name, None)
        if self.machines is not None:
            self.machines.end(name)

    def _add_operation(self, name: str, due: float, result: Any) -> operations_pb2.Operation:  # noqa: ANN401 - any message
        message = operations_pb2.Operation(
            name=f"{_zone_path(name)}/operations/operation-{next(self._numbers)}-{_short_name(name)}"
        )
        self._operations[message.name] = _Operation(message, due, result)
        return message


def host_count(accelerator_type: str) -> int:
    """Return the number of virtual machines of a slice: of four chips each, if it is larger than one of eight cores."""
    generation, _, size = accelerator_type.rpartition("-")
    if not size.isdigit():  # a node of a pool that states no type
        return 1
    chips = int(size) // (1 if generation in _NAMED_BY_CHIPS else 2)
    return chips // 4 if int(size) > 8 else 1  # noqa: PLR2004 - eight is the most of one host, chips or cores


def _complete(operation: _Operation) -> None:
    operation.message.done = True
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


def _zone_path(name: str) -> str:
    return name.rsplit("/", 2)[0]


def _zone_name(parent: str) -> str:
    return parent.split("/")[3]


def _short_name(name: str) -> str:
    return name.rpartition("/")[2]
