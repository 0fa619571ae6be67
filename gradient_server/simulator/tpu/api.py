"""A simulated TPU API server: google-cloud-tpu's own messages over real gRPC."""

import errno
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import grpc
from google.cloud import tpu_v1, tpu_v2
from google.longrunning import operations_pb2
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from gradient_server.simulator.tpu.faults import TpuFault, TpuFaults
from gradient_server.simulator.tpu.state import TpuApiError, TpuProject

TYPES = (
    *(f"{name}-{size}" for name in ("v2", "v3", "v4", "v5p") for size in (8, 16, 32, 64, 128, 256)),
    *(f"{name}-{size}" for name in ("v5litepod", "v6e") for size in (1, 4, 8, 16, 32, 64, 128, 256)),
)
RUNTIMES = ("tpu-ubuntu2204-base", "v2-alpha-tpuv5-lite", "v2-alpha-tpuv5", "v2-alpha-tpuv6e")
_DOMAIN = "googleapis.com"
_ZONE = re.compile("/locations/([^/]+)/")
_THREADS = 64  # each hanging call occupies one

Method = Callable[[Any], Any]


class TpuSimulator:
    """A gRPC server for the TPU API of a simulated `Cloud`, with fault injection.

    Args:
        port: Port on the loopback address; 0: any free one.
        cloud: The project; default: an empty one whose zones all have room.
        tls: A file with a key and its certificate: serve TLS, and refuse calls without a token.
    """

    def __init__(self, port: int = 0, cloud: TpuProject | None = None, tls: Path | None = None) -> None:
        self.cloud = cloud or TpuProject()
        self.calls: list[str] = []  # all called methods in order, each with its zone
        self.hidden: set[str] = set()  # zones that are answered as ones that do not exist
        self._needs_token = tls is not None
        self._stopped = threading.Event()
        self._faults = TpuFaults(self._stopped)
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tpu-simulator")
        # By default two servers could share a port, each receiving some of the calls.
        self._server = grpc.server(pool, options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers(tuple(self._services()))
        try:
            address = f"127.0.0.1:{port}"
            if tls is None:
                self.port: int = self._server.add_insecure_port(address)
            else:
                pair = tls.read_bytes(), tls.read_bytes()
                self.port = self._server.add_secure_port(address, grpc.ssl_server_credentials([pair]))
        except RuntimeError as error:  # gRPC raises no more specific error
            raise OSError(errno.EADDRINUSE, f"port {port} is taken") from error

    @property
    def address(self) -> str:
        """The server's address, as host:port."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        """Stop serving; hanging calls end."""
        self._stopped.set()
        self._server.stop(0).wait()

    def inject(self, method: str, fault: TpuFault) -> None:
        """Inject a fault into the next calls of a method (`GetNode`, or `*` for every one)."""
        self._faults.add(method, fault)

    def clear_all_faults(self) -> None:
        self._faults.clear()

    def _services(self) -> Iterator[grpc.GenericRpcHandler]:
        yield self._service(
            "google.cloud.tpu.v2.Tpu",
            {
                "GetNode": (tpu_v2.GetNodeRequest, lambda request: self.cloud.node(request.name)),
                "ListNodes": (tpu_v2.ListNodesRequest, self._list_nodes),
                "CreateNode": (
                    tpu_v2.CreateNodeRequest,
                    lambda request: self.cloud.create_node(request.parent, request.node_id, request.node),
                ),
                "DeleteNode": (tpu_v2.DeleteNodeRequest, lambda request: self.cloud.delete_node(request.name)),
                "GetQueuedResource": (
                    tpu_v2.GetQueuedResourceRequest,
                    lambda request: self.cloud.queued_resource(request.name),
                ),
                "ListQueuedResources": (tpu_v2.ListQueuedResourcesRequest, self._list_queued),
                "CreateQueuedResource": (
                    tpu_v2.CreateQueuedResourceRequest,
                    lambda request: self.cloud.create_queued(
                        request.parent, request.queued_resource_id, request.queued_resource
                    ),
                ),
                "DeleteQueuedResource": (
                    tpu_v2.DeleteQueuedResourceRequest,
                    lambda request: self.cloud.delete_queued(request.name, force=request.force),
                ),
                "ListAcceleratorTypes": (tpu_v2.ListAcceleratorTypesRequest, self._list_types),
                "ListRuntimeVersions": (tpu_v2.ListRuntimeVersionsRequest, _list_runtimes),
            },
        )
        yield from self._other_services()

    def _other_services(self) -> Iterator[grpc.GenericRpcHandler]:
        yield self._service(
            "google.cloud.tpu.v1.Tpu",
            {"GetNode": (tpu_v1.GetNodeRequest, lambda request: _as_v1(self.cloud.node(request.name)))},
        )
        yield self._service(
            "google.longrunning.Operations",
            {"GetOperation": (operations_pb2.GetOperationRequest, lambda request: self.cloud.operation(request.name))},
        )

    def _service(self, name: str, methods: dict[str, tuple[Any, Method]]) -> grpc.GenericRpcHandler:
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                self._handler(method, act),
                request_deserializer=getattr(request, "deserialize", None) or request.FromString,
                response_serializer=None,  # responses are serialized already
            )
            for method, (request, act) in methods.items()
        }
        handler: grpc.GenericRpcHandler = grpc.method_handlers_generic_handler(name, handlers)
        return handler

    def _handler(self, method: str, act: Method) -> Callable[[Any, grpc.ServicerContext], bytes]:
        def handle(request: Any, context: grpc.ServicerContext) -> bytes:  # noqa: ANN401 - any message
            if self._needs_token and "authorization" not in dict(context.invocation_metadata()):
                _abort(context, TpuApiError(grpc.StatusCode.UNAUTHENTICATED, "Request had no credentials."))
            try:
                return self.call(method, act, request, context)
            except TpuApiError as refusal:
                _abort(context, refusal)

        return handle

    def call(self, method: str, act: Method, request: Any, context: grpc.ServicerContext | None = None) -> bytes:  # noqa: ANN401 - any message
        """Call a method, with the faults injected into it; return the serialized response."""
        fault = self._faults.next(method)
        if fault is not None and not fault.done:
            self._apply_fault(fault, context)
        with self.cloud.lock:
            zone = _ZONE.search(f"{getattr(request, 'parent', '') or request.name}/")
            self.calls.append(f"{method} {zone[1]}" if zone else method)
            if zone and zone[1] in self.hidden:
                raise TpuApiError(grpc.StatusCode.NOT_FOUND, f"Location {zone[1]} was not found")
            answer = _serialize(act(request))  # serialized under the lock, so that it cannot change meanwhile
        if fault is not None and fault.done:
            self._apply_fault(fault, context)
        return answer

    def _apply_fault(self, fault: TpuFault, context: grpc.ServicerContext | None) -> None:
        self._faults.wait(fault.seconds, context)
        if fault.code is not None:
            raise TpuApiError(fault.code, fault.message, fault.reason, fault.delay)

    def _list_nodes(self, request: tpu_v2.ListNodesRequest) -> tpu_v2.ListNodesResponse:
        nodes, token = _page(self.cloud.nodes(request.parent), request)
        return tpu_v2.ListNodesResponse(nodes=nodes, next_page_token=token)

    def _list_queued(self, request: tpu_v2.ListQueuedResourcesRequest) -> tpu_v2.ListQueuedResourcesResponse:
        queued, token = _page(self.cloud.queued_resources(request.parent), request)
        return tpu_v2.ListQueuedResourcesResponse(queued_resources=queued, next_page_token=token)

    def _list_types(self, request: tpu_v2.ListAcceleratorTypesRequest) -> tpu_v2.ListAcceleratorTypesResponse:
        offered = self.cloud.offered.get(request.parent.rpartition("/")[2], TYPES)
        types = [
            tpu_v2.AcceleratorType(name=f"{request.parent}/acceleratorTypes/{offered_type}", type_=offered_type)
            for offered_type in offered
        ]
        return tpu_v2.ListAcceleratorTypesResponse(accelerator_types=types)


def _page(things: list[Any], request: Any) -> tuple[list[Any], str]:  # noqa: ANN401 - any list request
    first = int(request.page_token or 0)
    size = request.page_size or 1000
    more = first + size < len(things)
    return things[first : first + size], str(first + size) if more else ""


def _abort(context: grpc.ServicerContext, refusal: TpuApiError) -> NoReturn:
    """Abort the call with an error in Google's format, with its details."""
    status = status_pb2.Status(code=refusal.code.value[0], message=refusal.message)
    if refusal.reason:
        status.details.add().Pack(error_details_pb2.ErrorInfo(reason=refusal.reason, domain=_DOMAIN))
    if refusal.delay:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(round(refusal.delay * 1000))
        status.details.add().Pack(retry)
    context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError  # unreachable: the call above raises


def _serialize(answer: Any) -> bytes:  # noqa: ANN401 - any message, of either generation
    data: bytes = answer.SerializeToString() if hasattr(answer, "DESCRIPTOR") else type(answer).serialize(answer)
    return data


def _as_v1(node: tpu_v2.Node) -> tpu_v1.Node:
    return tpu_v1.Node(
        name=node.name,
        accelerator_type=node.accelerator_type,
        state=int(node.state),
        health=int(node.health),
        health_description=node.health_description,
        tensorflow_version=node.runtime_version,
        network_endpoints=[
            tpu_v1.NetworkEndpoint(ip_address=endpoint.ip_address, port=endpoint.port)
            for endpoint in node.network_endpoints
        ],
        labels=dict(node.labels),
    )


def _list_runtimes(request: tpu_v2.ListRuntimeVersionsRequest) -> tpu_v2.ListRuntimeVersionsResponse:
    versions = [
        tpu_v2.RuntimeVersion(name=f"{request.parent}/runtimeVersions/{runtime}", version=runtime)
        for runtime in RUNTIMES
    ]
    return tpu_v2.ListRuntimeVersionsResponse(runtime_versions=versions)
