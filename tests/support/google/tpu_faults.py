"""The simulated TPU API with faults, and a project that tests control: what Google may do, and the bill for it."""

import re
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta

import grpc
from google.cloud import tpu_v2
from google.protobuf import empty_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gradient_server.simulator.tpu.api import TpuSimulator
from gradient_server.simulator.tpu.state import NodeState, QueuedState, TpuApiError, TpuProject

HANG = 24 * 3600.0  # a delay longer than every timeout, in seconds
DENIED = (
    "Your request to provision TPU Node has been denied. Please migrate to TPU VM Architecture or contact Cloud TPU "
    "team to gain TPU Node access."
)
_ZONE = re.compile("/locations/([^/]+)/")
_USABLE = frozenset({NodeState.CREATING, NodeState.READY, NodeState.RESTARTING, NodeState.REPAIRING})
_WAITING = frozenset({QueuedState.ACCEPTED, QueuedState.WAITING_FOR_RESOURCES})


@dataclass(frozen=True, slots=True)
class TpuFault:
    code: grpc.StatusCode | None = None  # gRPC status of the response; None: the call succeeds, after the delay
    message: str = "as the simulator was told"
    reason: str = ""  # Google's error code (ErrorInfo.reason); empty: none
    delay: float = 0.0  # seconds after which Google asks to be asked again (RetryInfo); 0: it does not say
    seconds: float = 0.0
    done: bool = False  # the work is done all the same, and only the response is lost
    times: int = 1  # number of calls it affects; 0: all from now on


@dataclass(slots=True)
class TpuFaults:
    """Pending faults by method name. Thread-safe."""

    stopped: threading.Event = field(default_factory=threading.Event)
    _pending: dict[str, list[TpuFault]] = field(default_factory=dict)
    _call_counts: dict[str, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, method: str, fault: TpuFault) -> None:
        """Add a fault for the next calls of a method; `*` is every method."""
        with self._lock:
            self._pending.setdefault(method, []).append(fault)

    def clear(self) -> None:
        with self._lock:
            self._pending.clear()
            self._call_counts.clear()

    def next(self, method: str) -> TpuFault | None:
        with self._lock:
            for name in (method, "*"):
                faults = self._pending.get(name)
                if not faults:
                    continue
                fault = faults[0]
                self._call_counts[name] = self._call_counts.get(name, 0) + 1
                if fault.times and self._call_counts[name] >= fault.times:
                    faults.pop(0)
                    self._call_counts[name] = 0
                return fault
        return None

    def wait(self, seconds: float, context: grpc.ServicerContext | None) -> None:
        """Sleep for `seconds`, or until the client cancels or the server stops."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and (context is None or context.is_active()) and not self.stopped.wait(0.02):
            pass


class FaultyTpuSimulator(TpuSimulator):
    """The TPU API with fault injection; with TLS (a file with a key and its certificate), calls need a token."""

    def __init__(self, cloud=None, tls=None):
        self.calls = []  # all called methods in order, each with its zone
        self.hidden = set()  # zones that are answered as ones that do not exist
        self._needs_token = tls is not None
        self._faults = TpuFaults()
        pair = None if tls is None else grpc.ssl_server_credentials([(tls.read_bytes(), tls.read_bytes())])
        super().__init__(0, cloud or ControlledTpuProject(), pair)

    def stop(self):
        self._faults.stopped.set()  # hanging calls end
        super().stop()

    def inject(self, method, fault):
        """Inject a fault into the next calls of a method (`GetNode`, or `*` for every one)."""
        self._faults.add(method, fault)

    def clear_all_faults(self):
        self._faults.clear()

    def call(self, method, act, request, context=None):
        try:
            return self._call(method, act, request, context)
        except DetailedError as error:
            if context is None:
                raise
            context.abort_with_status(rpc_status.to_status(error.status()))

    def _call(self, method, act, request, context):
        if context and self._needs_token and "authorization" not in dict(context.invocation_metadata()):
            raise TpuApiError(grpc.StatusCode.UNAUTHENTICATED, "Request had no credentials.")
        fault = self._faults.next(method)
        if fault is not None and not fault.done:
            self._apply(fault, context)
        zone = _ZONE.search(f"{getattr(request, 'parent', '') or request.name}/")
        with self.cloud.lock:
            self.calls.append(f"{method} {zone[1]}" if zone else method)
            if zone and zone[1] in self.hidden:
                raise TpuApiError(grpc.StatusCode.NOT_FOUND, f"Location {zone[1]} was not found")
            answer = super().call(method, act, request)
        if fault is not None and fault.done:
            self._apply(fault, context)
        return answer

    def _apply(self, fault, context):
        self._faults.wait(fault.seconds, context)
        if fault.code is not None:
            raise DetailedError(fault)

    def offered_types(self, parent):
        return self.cloud.offered.get(parent.rpartition("/")[2]) or super().offered_types(parent)


class DetailedError(TpuApiError):
    """An error response with its details, in Google's format."""

    def __init__(self, fault):
        super().__init__(fault.code, fault.message)
        self.fault = fault

    def status(self):
        made = status_pb2.Status(code=self.code.value[0], message=self.message)
        if self.fault.reason:
            made.details.add().Pack(error_details_pb2.ErrorInfo(reason=self.fault.reason, domain="googleapis.com"))
        if self.fault.delay:
            retry = error_details_pb2.RetryInfo()
            retry.retry_delay.FromMilliseconds(round(self.fault.delay * 1000))
            made.details.add().Pack(retry)
        return made


@dataclass
class ControlledTpuProject(TpuProject):
    capacity: dict[str, int] = field(default_factory=dict)  # number of nodes by zone; `room` in zones not listed
    offered: dict[str, list[str]] = field(default_factory=dict)  # types by zone; one that is not listed offers all
    endpoints: int | None = None  # number of endpoints of every node; None: as many as it has hosts
    delete_seconds: float = 0.0
    stuck: set[str] = field(default_factory=set)  # full names of queued resources that stay DELETING, with their nodes
    deny_tpu_node: bool = False  # refuse every request for a node, as Google refuses the TPU Node architecture
    late_errors: list = field(default_factory=list)  # that the next operations end with, after their calls succeeded
    record: list[tuple[str, str]] = field(default_factory=list)  # all in order, such as `("created", "nodes/x")`
    bills: dict[str, list[float]] = field(default_factory=dict)  # start (READY) and end of each node's, in Unix time
    clock_ahead: float = 0.0  # seconds by which the cloud's clock is ahead of this computer's
    _gone_at: dict[str, float] = field(default_factory=dict)
    _failing: dict[str, status_pb2.Status] = field(default_factory=dict)  # errors of operations, by name

    def preempt(self, node_id):
        self.set_state(node_id, NodeState.PREEMPTED)

    def set_state(self, node_id, node_state):
        with self.lock:
            node = self._node_by_id(node_id)
            node.state = node_state
            if node_state not in _USABLE:
                self._end_bill(node.name)
                if self.machines is not None:
                    self.machines.end(node.name)

    def set_health(self, node_id, health, why=""):
        with self.lock:
            node = self._node_by_id(node_id)
            node.health, node.health_description = health, why

    def suspend(self, queued_id, *, by_user):
        """Suspend a queued resource: its nodes are deleted."""
        initiators = tpu_v2.QueuedResourceState.StateInitiator
        by = initiators.USER if by_user else initiators.SERVICE
        with self.lock:
            (name,) = (name for name in self._queued if _id(name) == queued_id)
            for node in [node for node in self._nodes.values() if node.queued_resource == name]:
                super()._remove_node(node.name)
                self._forget(node.name)
            suspended = tpu_v2.QueuedResourceState(state=QueuedState.SUSPENDED, state_initiator=by)
            self._queued[name].message.state = suspended

    def remaining_resources(self):
        """Return the names of the existing nodes and queued resources."""
        with self.lock:
            self._advance()
            return sorted(self._nodes), sorted(self._queued)

    def create_node(self, parent, node_id, node):
        if self.deny_tpu_node:
            raise TpuApiError(grpc.StatusCode.FAILED_PRECONDITION, DENIED)
        self._check_type(parent, node)
        return super().create_node(parent, node_id, node)

    def create_queued(self, parent, queued_id, request):
        self._check_type(parent, request.tpu.node_spec[0].node)
        operation = super().create_queued(parent, queued_id, request)
        self.record.append(("created", f"queuedResources/{queued_id}"))
        return operation

    def delete_queued(self, name, *, force):
        if name not in self.stuck:
            return super().delete_queued(name, force=force)
        self._advance()
        self._queued[name].message.state = tpu_v2.QueuedResourceState(state=QueuedState.DELETING)
        return self._add_operation(name, 0.0, empty_pb2.Empty())

    def _check_type(self, parent, node):
        zone = parent.split("/")[3]
        if zone in self.offered and node.accelerator_type not in self.offered[zone]:
            message = f"the accelerator {node.accelerator_type} was not found in zone {zone}"
            raise TpuApiError(grpc.StatusCode.INVALID_ARGUMENT, message)

    def _advance(self):
        for name, gone_at in list(self._gone_at.items()):
            if time.monotonic() >= gone_at:
                super()._remove_node(name)
                self._forget(name)
        super()._advance()
        for name in list(self._failing):
            if self._operations[name].message.done:
                self._operations[name].message.error.CopyFrom(self._failing.pop(name))

    def _has_room(self, parent):
        busy = sum(name.startswith(f"{parent}/") and node.state in _USABLE for name, node in self._nodes.items())
        return busy < self.capacity.get(parent.split("/")[3], self.room)

    def _advance_queued(self, waiting, current):
        message = waiting.message
        begins = message.state.state in _WAITING and self._has_room(message.tpu.node_spec[0].parent)
        if begins and self.late_errors:
            code, text = self.late_errors.pop(0)
            failed = tpu_v2.QueuedResourceState.FailedData(error=status_pb2.Status(code=code.value[0], message=text))
            message.state = tpu_v2.QueuedResourceState(state=QueuedState.FAILED, failed_data=failed)
        else:
            super()._advance_queued(waiting, current)

    def _add_node(self, parent, node_id, request, *, queued=""):
        super()._add_node(parent, node_id, request, queued=queued)
        self._nodes[f"{parent}/nodes/{node_id}"].create_time += timedelta(seconds=self.clock_ahead)
        self.record.append(("created", f"nodes/{node_id}"))

    def _finish_creation(self, name):
        """End the creation of a node: it becomes READY, or is dropped by a late error."""
        zone = name.rsplit("/", 2)[0]
        if any(key.startswith(f"{zone}/") and key.endswith(f"-{_id(name)}") for key in self._failing):
            super()._remove_node(name)
            self._forget(name)
            return
        creating = self._nodes[name].state == NodeState.CREATING
        super()._finish_creation(name)
        if creating:
            self.bills[_id(name)] = [time.time()]

    def _addresses(self, hosts):
        return super()._addresses(hosts if self.endpoints is None else self.endpoints)

    def _remove_node(self, name):
        if self.delete_seconds:
            self._nodes[name].state = NodeState.DELETING
            self._gone_at.setdefault(name, time.monotonic() + self.delete_seconds)
        else:
            super()._remove_node(name)
            self._forget(name)

    def _forget(self, name):
        self._gone_at.pop(name, None)
        self._end_bill(name)
        self.record.append(("deleted", f"nodes/{_id(name)}"))

    def _remove_deleted_queued(self):
        before = dict(self._queued)
        super()._remove_deleted_queued()
        self._queued |= {name: waiting for name, waiting in before.items() if name in self.stuck}
        gone = before.keys() - self._queued.keys()
        self.record += [("deleted", f"queuedResources/{_id(name)}") for name in sorted(gone)]

    def _add_operation(self, name, due, result):
        message = super()._add_operation(name, due, result)
        if self.late_errors and due:
            code, text = self.late_errors.pop(0)
            self._failing[message.name] = status_pb2.Status(code=code.value[0], message=text)
        return message

    def _end_bill(self, name):
        bill = self.bills.get(_id(name), [])
        bill[1:] = bill[1:] or [time.time()] * len(bill)

    def _node_by_id(self, node_id):
        self._advance()
        (node,) = (node for name, node in self._nodes.items() if _id(name) == node_id)
        return node


def _id(name):
    return name.rpartition("/")[2]
