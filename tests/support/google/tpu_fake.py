"""Google's TPU API, version 2, as its documentation and its clients' trackers describe it; no code of the simulator.

Flex-start capacity is requested with version 2alpha1, as its discovery document (revision 20261001) and gcloud have it:
`provisioningModel` and `runDuration.maxRunDuration`, of at most seven days. After that the node is deleted, and its
queued resource is SUSPENDED (cloud.google.com/tpu/docs/request-using-flex-start).
"""

import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import psutil
from google.cloud import tpu_v2, tpu_v2alpha1
from google.longrunning import operations_pb2
from google.protobuf import any_pb2, duration_pb2, empty_pb2, json_format
from google.rpc import status_pb2
from grpc_status import rpc_status

from core.system.processes import running_processes

State, Health = tpu_v2.Node.State, tpu_v2.Node.Health
Queued = tpu_v2.QueuedResourceState.State
GENERATIONS = {
    "us-central1-b": ["v2-8", "v3-8"],
    "us-west4-a": ["v5litepod-8", "v5litepod-16"],
    "us-east5-b": ["v6e-8"],
    "us-central2-b": ["v4-8", "v4-16"],
    "us-east5-a": ["v5p-8"],
}
"""Types by zone: no zone offers all generations."""


MAX_RUN_SECONDS = 7 * 24 * 3600
HTTP_STATUS = {"INVALID_ARGUMENT": 400, "PERMISSION_DENIED": 403, "ALREADY_EXISTS": 409, "RESOURCE_EXHAUSTED": 429}


class Refusal(Exception):
    """An error of the API: code, message, and optionally the reason in its details."""

    def __init__(self, code: grpc.StatusCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class TpuService:
    """Nodes and queued resources of one project, with every request and state in order.

    Args:
        device: Address of what nodes serve.
        run_vm: Starts what runs on a VM: node id, start-up script.
    """

    def __init__(
        self, device: tuple[str, int], run_vm: Callable[[str, str], None], end_vm: Callable[[str], None]
    ) -> None:
        self.device = device
        self.offered = {zone: list(types) for zone, types in GENERATIONS.items()}
        self.nodes: dict[str, tpu_v2.Node] = {}
        self.queued: dict[str, tpu_v2.QueuedResource] = {}
        self.requests: list[str] = []
        self.faults: list[tuple[str, Exception]] = []
        self.ready = True
        self.endpoints = 1
        self.stuck: set[str] = set()
        self.delete_seconds = 0.0
        self.late: list[tuple[str, float]] = []
        self.billed: dict[str, list[float]] = {}
        self.run_seconds: dict[str, float] = {}
        self._operations: dict[str, operations_pb2.Operation] = {}
        self._numbers = itertools.count(1)
        self._run_vm, self._end_vm = run_vm, end_vm
        self.lock = threading.RLock()

    def handler(self) -> grpc.GenericRpcHandler:
        """The service for a gRPC server."""
        pairs = {
            "CreateNode": tpu_v2.CreateNodeRequest,
            "GetNode": tpu_v2.GetNodeRequest,
            "ListNodes": tpu_v2.ListNodesRequest,
            "DeleteNode": tpu_v2.DeleteNodeRequest,
            "CreateQueuedResource": tpu_v2.CreateQueuedResourceRequest,
            "GetQueuedResource": tpu_v2.GetQueuedResourceRequest,
            "ListQueuedResources": tpu_v2.ListQueuedResourcesRequest,
            "DeleteQueuedResource": tpu_v2.DeleteQueuedResourceRequest,
            "ListAcceleratorTypes": tpu_v2.ListAcceleratorTypesRequest,
            "ListRuntimeVersions": tpu_v2.ListRuntimeVersionsRequest,
        }
        methods = {name: self._method(name, kind) for name, kind in pairs.items()}
        return grpc.method_handlers_generic_handler("google.cloud.tpu.v2.Tpu", methods)

    def operations(self) -> grpc.GenericRpcHandler:
        def get(request: operations_pb2.GetOperationRequest, context: grpc.ServicerContext) -> operations_pb2.Operation:
            del context
            return self._operations[request.name]

        method = grpc.unary_unary_rpc_method_handler(
            get, operations_pb2.GetOperationRequest.FromString, operations_pb2.Operation.SerializeToString
        )
        return grpc.method_handlers_generic_handler("google.longrunning.Operations", {"GetOperation": method})

    def _method(self, name: str, kind: type) -> grpc.RpcMethodHandler:
        act = getattr(self, "_" + re.sub(r"(?<!^)([A-Z])", r"_\1", name).lower())

        def call(request: object, context: grpc.ServicerContext) -> object:
            metadata = dict(context.invocation_metadata())
            if not str(metadata.get("authorization", "")).startswith("Bearer "):
                context.abort(grpc.StatusCode.UNAUTHENTICATED, "Request had invalid authentication credentials.")
            place = getattr(request, "parent", "") or request.name
            self.requests.append(f"{name} {place.partition('/locations/')[2]}")
            with self.lock:
                try:
                    for index, (method, error) in enumerate(self.faults):
                        if re.fullmatch(method, name):
                            del self.faults[index]
                            raise error
                    made = act(request)
                except Refusal as error:
                    context.abort_with_status(
                        rpc_status.to_status(status_pb2.Status(code=error.code.value[0], message=str(error)))
                    )
            self._answer_late(name)
            return made

        return grpc.unary_unary_rpc_method_handler(
            call,
            kind.deserialize,
            lambda made: made.SerializeToString() if hasattr(made, "SerializeToString") else type(made).serialize(made),
        )

    def _answer_late(self, name: str) -> None:
        """Delay the response to a request that is carried out."""
        for method, seconds in self.late:
            if re.fullmatch(method, name):
                time.sleep(seconds)

    def _operation(self, message: object) -> operations_pb2.Operation:
        packed = any_pb2.Any()
        packed.Pack(message if isinstance(message, empty_pb2.Empty) else type(message).pb(message))
        made = operations_pb2.Operation(name=f"operations/{next(self._numbers)}", done=True, response=packed)
        self._operations[made.name] = made
        return made

    def _check_type(self, parent: str, node: tpu_v2.Node) -> None:
        zone = parent.rpartition("/")[2]
        if node.accelerator_type not in self.offered.get(zone, ()):
            words = f"the accelerator {node.accelerator_type} was not found in zone {zone}"
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, words)

    def _add_node(self, parent: str, node_id: str, node: tpu_v2.Node) -> tpu_v2.Node:
        node.name = f"{parent}/nodes/{node_id}"
        node.state = State.READY if self.ready else State.CREATING
        node.health = Health.HEALTHY
        node.create_time = datetime.now(UTC)
        address, port = self.device
        node.network_endpoints = [tpu_v2.NetworkEndpoint(ip_address=address, port=port)] * self.endpoints
        self.nodes[node.name] = node
        if self.ready:
            self.billed[node_id] = [time.time()]
        self._run_vm(node_id, node.metadata.get("startup-script", ""))
        return node

    def end_run(self) -> None:
        """Delete the only node: the run duration of its queued resource is over."""
        with self.lock:
            name, node = self.nodes.popitem()
            initiator = tpu_v2.QueuedResourceState.StateInitiator.SERVICE
            self.queued[node.queued_resource].state = tpu_v2.QueuedResourceState(
                state=Queued.SUSPENDED, state_initiator=initiator
            )
            self.end_billing(name.rpartition("/")[2])
        self._end_vm(name.rpartition("/")[2])

    def _create_node(self, request: tpu_v2.CreateNodeRequest) -> operations_pb2.Operation:
        self._check_type(request.parent, request.node)
        if f"{request.parent}/nodes/{request.node_id}" in self.nodes:
            raise Refusal(grpc.StatusCode.ALREADY_EXISTS, "Resource already exists")
        return self._operation(self._add_node(request.parent, request.node_id, request.node))

    def _create_queued_resource(self, request: tpu_v2.CreateQueuedResourceRequest) -> operations_pb2.Operation:
        name = f"{request.parent}/queuedResources/{request.queued_resource_id}"
        if name in self.queued:
            raise Refusal(grpc.StatusCode.ALREADY_EXISTS, "Resource already exists")
        made = request.queued_resource
        (spec,) = made.tpu.node_spec
        self._check_type(spec.parent, spec.node)
        made.name, made.create_time = name, datetime.now(UTC)
        made.state = tpu_v2.QueuedResourceState(state=Queued.ACTIVE if self.ready else Queued.WAITING_FOR_RESOURCES)
        self.queued[name] = made
        if self.ready:
            node = tpu_v2.Node.deserialize(tpu_v2.Node.serialize(spec.node))
            self._add_node(spec.parent, spec.node_id, node).queued_resource = name
        return self._operation(made)

    def _get_node(self, request: tpu_v2.GetNodeRequest) -> tpu_v2.Node:
        return self._found(self.nodes, request.name)

    def _get_queued_resource(self, request: tpu_v2.GetQueuedResourceRequest) -> tpu_v2.QueuedResource:
        return self._found(self.queued, request.name)

    @staticmethod
    def _found(held: dict, name: str) -> object:
        if name not in held:
            raise Refusal(grpc.StatusCode.NOT_FOUND, f"Resource '{name}' was not found")
        return held[name]

    def _list_nodes(self, request: tpu_v2.ListNodesRequest) -> tpu_v2.ListNodesResponse:
        return tpu_v2.ListNodesResponse(nodes=[n for k, n in self.nodes.items() if k.startswith(request.parent + "/")])

    def _list_queued_resources(self, request: tpu_v2.ListQueuedResourcesRequest) -> tpu_v2.ListQueuedResourcesResponse:
        found = [one for name, one in self.queued.items() if name.startswith(request.parent + "/")]
        return tpu_v2.ListQueuedResourcesResponse(queued_resources=found)

    def _list_accelerator_types(
        self, request: tpu_v2.ListAcceleratorTypesRequest
    ) -> tpu_v2.ListAcceleratorTypesResponse:
        types = self.offered.get(request.parent.rpartition("/")[2], ())
        found = [tpu_v2.AcceleratorType(name=f"{request.parent}/acceleratorTypes/{one}", type_=one) for one in types]
        return tpu_v2.ListAcceleratorTypesResponse(accelerator_types=found)

    def _list_runtime_versions(self, request: tpu_v2.ListRuntimeVersionsRequest) -> tpu_v2.ListRuntimeVersionsResponse:
        names = ("tpu-ubuntu2204-base", "v2-alpha-tpuv5-lite", "v2-alpha-tpuv5", "v2-alpha-tpuv6e")
        found = [tpu_v2.RuntimeVersion(name=f"{request.parent}/runtimeVersions/{one}", version=one) for one in names]
        return tpu_v2.ListRuntimeVersionsResponse(runtime_versions=found)

    def _delete_node(self, request: tpu_v2.DeleteNodeRequest) -> operations_pb2.Operation:
        node = self._found(self.nodes, request.name)
        if node.queued_resource in self.queued and node.queued_resource not in self.stuck:
            raise Refusal(grpc.StatusCode.FAILED_PRECONDITION, "The node belongs to a queued resource; delete that.")
        self._end_node(request.name)
        return self._operation(empty_pb2.Empty())

    def _delete_queued_resource(self, request: tpu_v2.DeleteQueuedResourceRequest) -> operations_pb2.Operation:
        queued = self._found(self.queued, request.name)
        if request.name in self.stuck:
            queued.state = tpu_v2.QueuedResourceState(state=Queued.DELETING)
            return self._operation(empty_pb2.Empty())
        if self.delete_seconds:
            queued.state = tpu_v2.QueuedResourceState(state=Queued.DELETING)
        else:
            del self.queued[request.name]
        for name in [name for name, node in self.nodes.items() if node.queued_resource == request.name]:
            self._end_node(name)
        return self._operation(empty_pb2.Empty())

    def _end_node(self, name: str) -> None:
        """Delete a node and its queued resource, after `delete_seconds` if there are any."""
        if not self.delete_seconds:
            self._remove_node(name)
        elif self.nodes[name].state != State.DELETING:
            self.nodes[name].state = State.DELETING
            threading.Timer(self.delete_seconds, self._remove_node, (name,)).start()

    def _remove_node(self, name: str) -> None:
        with self.lock:
            self.queued.pop(self.nodes.pop(name).queued_resource, None)
            self.end_billing(name.rpartition("/")[2])
        self._end_vm(name.rpartition("/")[2])

    def end_billing(self, node_id: str) -> None:
        """Note that a node is billed no more; the first time counts."""
        times = self.billed.get(node_id, [0.0, 0.0])
        times[1:] = times[1:2] or [time.time()]

    def preempt(self) -> None:
        """Take the only node away."""
        node = self.node()
        node.state = State.PREEMPTED
        self.end_billing(node.name.rpartition("/")[2])

    def delete_by_rest(self, path: str) -> bool:
        """`DELETE /v2/…`; whether there was such a resource."""
        name = path.removeprefix("/v2/")
        self.requests.append(f"REST DELETE {name.partition('/locations/')[2]}")
        with self.lock, suppress(Refusal):
            if "/queuedResources/" in name:
                self._delete_queued_resource(tpu_v2.DeleteQueuedResourceRequest(name=name, force=True))
            else:
                self._delete_node(tpu_v2.DeleteNodeRequest(name=name))
            return True
        return False

    def create_by_rest(self, path: str, query: dict[str, str], body: bytes) -> tuple[int, dict]:
        """`POST /v2alpha1/…/queuedResources`: status and content of the response."""
        parent, _, kind = path.removeprefix("/v2alpha1/").rpartition("/")
        if not path.startswith("/v2alpha1/") or kind != "queuedResources":
            return 404, {"error": {"code": 404, "message": path, "status": "NOT_FOUND"}}
        self.requests.append(f"CreateQueuedResource {parent.partition('/locations/')[2]}")
        with self.lock:
            try:
                for index, (method, error) in enumerate(self.faults):
                    if re.fullmatch(method, "CreateQueuedResource"):
                        del self.faults[index]
                        raise error
                made = self._create_flex_start(parent, query["queuedResourceId"], json.loads(body))
            except Refusal as error:
                code = HTTP_STATUS[error.code.name]
                return code, {"error": {"code": code, "message": str(error), "status": error.code.name}}
        self._answer_late("CreateQueuedResource")
        return 200, {"name": made.name, "done": made.done}

    def _create_flex_start(self, parent: str, queued_id: str, content: dict) -> operations_pb2.Operation:
        model, run_duration = content.pop("provisioningModel", "STANDARD"), duration_pb2.Duration()
        try:
            run_duration.FromJsonString(content.pop("runDuration", {}).get("maxRunDuration", "0s"))
            # Of the fields of v2alpha1 the library lacks only those two.
            json_format.ParseDict(content, tpu_v2alpha1.QueuedResource.pb(tpu_v2alpha1.QueuedResource()))
        except (ValueError, json_format.ParseError) as error:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"Invalid JSON payload received. {error}") from error
        seconds = run_duration.ToTimedelta().total_seconds()
        if model != "FLEX_START" or not 0 < seconds <= MAX_RUN_SECONDS:
            raise Refusal(grpc.StatusCode.INVALID_ARGUMENT, f"{model} for {seconds:.0f} s is not possible")
        wanted = tpu_v2.QueuedResource()
        json_format.ParseDict(content, tpu_v2.QueuedResource.pb(wanted))
        self.run_seconds[wanted.tpu.node_spec[0].node_id] = seconds
        request = tpu_v2.CreateQueuedResourceRequest(
            parent=parent, queued_resource_id=queued_id, queued_resource=wanted
        )
        return self._create_queued_resource(request)

    def serve_queue(self) -> None:
        """Give every waiting request its node."""
        with self.lock:
            self.ready = True
            for name, queued in self.queued.items():
                (spec,) = queued.tpu.node_spec
                if queued.state.state == Queued.WAITING_FOR_RESOURCES:
                    queued.state = tpu_v2.QueuedResourceState(state=Queued.ACTIVE)
                    node = tpu_v2.Node.deserialize(tpu_v2.Node.serialize(spec.node))
                    self._add_node(spec.parent, spec.node_id, node).queued_resource = name

    def node(self) -> tpu_v2.Node:
        """The only node."""
        (node,) = self.nodes.values()
        return node

    def made(self) -> list[str]:
        """Requests that create something, in order."""
        return [one for one in self.requests if one.startswith("Create")]


class _Metadata(BaseHTTPRequestHandler):
    """A VM's metadata server: only the token of its account."""

    def do_GET(self) -> None:
        content = b'{"access_token": "ya29.vm", "expires_in": 3600, "token_type": "Bearer"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as http.server names it
        """Log nothing."""


class Vms:
    """TPU VMs as processes: each runs its start-up script, with programs that reach Google through the proxy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._metadata = ThreadingHTTPServer(("127.0.0.1", 0), _Metadata)
        threading.Thread(target=self._metadata.serve_forever, args=(0.05,), daemon=True).start()
        self._scripts: dict[str, str] = {}
        self.environment: dict[str, str] = {}
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    @property
    def metadata_host(self) -> str:
        """The address of their metadata server."""
        return f"127.0.0.1:{self._metadata.server_address[1]}"

    def run(self, node_id: str, script: str) -> None:
        if "GRADIENT_VM_PLACE" not in script:
            return
        self._scripts[node_id] = script
        place = self.root / node_id
        place.mkdir(parents=True, exist_ok=True)
        own = {"GRADIENT_VM_PLACE": str(place / "disk"), "GRADIENT_VM_RUN": "process"}
        own["GCE_METADATA_HOST"] = self.metadata_host
        env = {name: value for name, value in os.environ.items() if not name.startswith("GRADIENT_")}
        with (place / "output").open("wb") as output:
            self.running[node_id] = started = subprocess.Popen(
                ["/bin/bash", "-s"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=env | self.environment | own,
                start_new_session=True,
            )
        started.stdin.write(script.encode())
        started.stdin.close()

    def restart(self, node_id: str) -> None:
        """Restart a VM, as Google does for maintenance."""
        self.end(node_id)
        (self.root / node_id / "disk" / "boot-id").write_text("of an earlier start")
        self.run(node_id, self._scripts[node_id])

    def end(self, node_id: str) -> None:
        started = self.running.pop(node_id, None)
        if started is None:
            return
        place, members = str(self.root / node_id / "disk"), []
        for process in running_processes():
            with suppress(psutil.Error):
                if process.environ().get("GRADIENT_VM_PLACE") == place:
                    members.append(process)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # a machine that is switched off: none sees another end
            for process in members:
                with suppress(psutil.Error):
                    process.send_signal(number)
        threading.Thread(target=started.wait, daemon=True).start()  # the VM may be what asked for its own end

    def stop(self) -> None:
        for node_id in list(self.running):
            self.end(node_id)

    def close(self) -> None:
        self.stop()
        self._metadata.shutdown()
        self._metadata.server_close()
