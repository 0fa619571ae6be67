"""TPU API requests over HTTPS: flex-start capacity (v2alpha1), and a VM that deletes its own node (v2).

The library lacks the two fields of cloud.google.com/tpu/docs/request-using-flex-start.
"""

import re
from typing import Any

from google.api_core import exceptions
from google.cloud import tpu_v2
from google.longrunning import operations_pb2
from google.protobuf import json_format

from gradient_server.simulator.gcs.api import StorageRequest, StorageResponse, json_response
from gradient_server.simulator.gcs.objects import StorageError
from gradient_server.simulator.tpu.api import TpuSimulator
from gradient_server.simulator.tpu.state import TpuApiError

MAX_RUN_SECONDS = 7 * 24 * 3600
_CREATE = re.compile("POST /v2alpha1/(.+)/queuedResources")
_DELETE = re.compile("DELETE /v2/(.+/(nodes|queuedResources)/[^/]+)")


def answer_rest(simulator: TpuSimulator, request: StorageRequest) -> StorageResponse:
    """Answer a request to tpu.googleapis.com. Raises `StorageError`: the request is none of these."""
    called = f"{request.method} {request.path}"
    try:
        if found := _CREATE.fullmatch(called):
            answer = _create_flex_start(simulator, found[1], request.query["queuedResourceId"], request.json)
        elif found := _DELETE.fullmatch(called):
            answer = _delete(simulator, found[1], found[2], force=request.query.get("force") == "true")
        else:
            raise StorageError(404, f"The simulator has no {called}.")
    except TpuApiError as error:
        status: Any = exceptions.from_grpc_status(error.code, error.message)  # type: ignore[no-untyped-call]  # untyped
        inner = {"code": status.code, "message": error.message, "status": error.code.name}
        return json_response({"error": inner}, status.code)
    return json_response(json_format.MessageToDict(operations_pb2.Operation.FromString(answer)))


def _create_flex_start(simulator: TpuSimulator, parent: str, queued_id: str, content: dict[str, Any]) -> bytes:
    model, duration = content.pop("provisioningModel"), content.pop("runDuration")["maxRunDuration"]
    seconds = float(duration.removesuffix("s"))
    if model != "FLEX_START" or not 0 < seconds <= MAX_RUN_SECONDS:
        raise StorageError(400, f"{model} for {duration} is not possible.")
    queued = tpu_v2.QueuedResource()
    try:
        json_format.ParseDict(content, tpu_v2.QueuedResource.pb(queued))
    except json_format.ParseError as error:
        raise StorageError(400, f"Invalid JSON payload received. {error}") from error

    def create(_: object) -> operations_pb2.Operation:
        return simulator.cloud.create_queued(parent, queued_id, queued)

    return simulator.call("CreateQueuedResource", create, tpu_v2.CreateQueuedResourceRequest(parent=parent))


def _delete(simulator: TpuSimulator, name: str, kind: str, *, force: bool) -> bytes:
    cloud, request = simulator.cloud, tpu_v2.DeleteNodeRequest(name=name)
    if kind == "nodes":
        return simulator.call("DeleteNode", lambda _: cloud.delete_node(name), request)
    return simulator.call("DeleteQueuedResource", lambda _: cloud.delete_queued(name, force=force), request)
