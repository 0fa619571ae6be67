"""A simulated TPU API server: google-cloud-tpu's own messages over real gRPC."""

import errno
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from google.cloud import tpu_v2
from google.longrunning import operations_pb2

from gradient_server.simulator.tpu.state import TpuApiError, TpuProject

TYPES = (
    *(f"{name}-{size}" for name in ("v2", "v3", "v4", "v5p") for size in (8, 16, 32, 64, 128, 256)),
    *(f"{name}-{size}" for name in ("v5litepod", "v6e") for size in (1, 4, 8, 16, 32, 64, 128, 256)),
)
RUNTIMES = ("tpu-ubuntu2204-base", "v2-alpha-tpuv5-lite", "v2-alpha-tpuv5", "v2-alpha-tpuv6e")
_THREADS = 64  # each hanging call occupies one

Method = Callable[[Any], Any]


class TpuSimulator:
    """A gRPC server for the TPU API of a simulated project.

    Args:
        port: Port on the loopback address; 0: any free one.
        cloud: The project.
        tls: The key and the certificate of the server; default: it is served without TLS.
    """

    def __init__(self, port: int, cloud: TpuProject, tls: grpc.ServerCredentials | None = None) -> None:
        self.cloud = cloud
        pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tpu-simulator")
        # By default two servers could share a port, each receiving some of the calls.
        self._server = grpc.server(pool, options=(("grpc.so_reuseport", 0),))
        self._server.add_generic_rpc_handlers(tuple(self._services()))
        try:
            self.port: int = self._server.add_secure_port(
                f"127.0.0.1:{port}", tls or grpc.insecure_server_credentials()
            )
        except RuntimeError as error:  # gRPC raises no more specific error
            raise OSError(errno.EADDRINUSE, f"port {port} is taken") from error

    @property
    def address(self) -> str:
        """The server's address, as host:port."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop(0).wait()

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
            try:
                return self.call(method, act, request, context)
            except TpuApiError as refusal:
                context.abort(refusal.code, refusal.message)
                raise  # never: the call above raises

        return handle

    def call(self, method: str, act: Method, request: Any, context: grpc.ServicerContext | None = None) -> bytes:  # noqa: ANN401 - any message
        """Call a method; return the serialized response."""
        del method, context
        with self.cloud.lock:
            return _serialize(act(request))  # serialized under the lock, so that it cannot change meanwhile

    def _list_nodes(self, request: tpu_v2.ListNodesRequest) -> tpu_v2.ListNodesResponse:
        nodes, token = _page(self.cloud.nodes(request.parent), request)
        return tpu_v2.ListNodesResponse(nodes=nodes, next_page_token=token)

    def _list_queued(self, request: tpu_v2.ListQueuedResourcesRequest) -> tpu_v2.ListQueuedResourcesResponse:
        queued, token = _page(self.cloud.queued_resources(request.parent), request)
        return tpu_v2.ListQueuedResourcesResponse(queued_resources=queued, next_page_token=token)

    def offered_types(self, parent: str) -> Iterable[str]:
        del parent  # all zones have the same
        return TYPES

    def _list_types(self, request: tpu_v2.ListAcceleratorTypesRequest) -> tpu_v2.ListAcceleratorTypesResponse:
        types = [
            tpu_v2.AcceleratorType(name=f"{request.parent}/acceleratorTypes/{offered_type}", type_=offered_type)
            for offered_type in self.offered_types(request.parent)
        ]
        return tpu_v2.ListAcceleratorTypesResponse(accelerator_types=types)


def _page(things: list[Any], request: Any) -> tuple[list[Any], str]:  # noqa: ANN401 - any list request
    first = int(request.page_token or 0)
    size = request.page_size or 1000
    more = first + size < len(things)
    return things[first : first + size], str(first + size) if more else ""


def _serialize(answer: Any) -> bytes:  # noqa: ANN401 - any message
    data: bytes = answer.SerializeToString() if hasattr(answer, "DESCRIPTOR") else type(answer).serialize(answer)
    return data


def _list_runtimes(request: tpu_v2.ListRuntimeVersionsRequest) -> tpu_v2.ListRuntimeVersionsResponse:
    versions = [
        tpu_v2.RuntimeVersion(name=f"{request.parent}/runtimeVersions/{runtime}", version=runtime)
        for runtime in RUNTIMES
    ]
    return tpu_v2.ListRuntimeVersionsResponse(runtime_versions=versions)
