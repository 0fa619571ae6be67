"""Requests flex-start capacity, with version 2alpha1 of Google's TPU API.

Version 2 has no field for it, and Google's client library has none for either version. The request is therefore JSON
over HTTPS, with the fields of Google's discovery document (revision 20261001) that gcloud sends, too. The queued
resource that it creates is read and deleted with version 2, like every other.
"""

from typing import Any

import grpc
from google.api_core import exceptions
from google.auth.transport.requests import AuthorizedSession
from google.cloud import tpu_v2
from google.protobuf import json_format
from google.rpc import error_details_pb2
from requests import Response


def create_flex_start(
    credentials: Any,  # noqa: ANN401 - of any kind
    endpoint: str,
    request: tpu_v2.CreateQueuedResourceRequest,  # the request without the fields that version 2 lacks
    run_seconds: int,
    timeout: float,  # seconds that the response may take
) -> str:
    """Create a queued resource with flex-start capacity; return the operation's name."""
    body = json_format.MessageToDict(tpu_v2.QueuedResource.pb(request.queued_resource))
    body |= {"provisioningModel": "FLEX_START", "runDuration": {"maxRunDuration": f"{run_seconds}s"}}
    url = f"https://{endpoint}/v2alpha1/{request.parent}/queuedResources"
    parameters = {"queuedResourceId": request.queued_resource_id}
    with AuthorizedSession(credentials) as session:
        answer = session.post(url, params=parameters, json=body, timeout=timeout)
        content = answer.json()
    if answer.ok:
        return str(content["name"])
    raise _api_error(answer, content.get("error", {}))


def _api_error(answer: Response, error: dict[str, Any]) -> Exception:
    """Convert an error response into the exception that the same error over gRPC has."""
    message = str(error.get("message", answer.reason))
    status = getattr(grpc.StatusCode, str(error.get("status")), None)
    converted: Exception
    if status is None:
        converted = exceptions.from_http_status(answer.status_code, message)  # type: ignore[no-untyped-call]  # untyped
        return converted
    details = {str(detail.get("@type")).rpartition(".")[2]: detail for detail in error.get("details", ())}
    reason = error_details_pb2.ErrorInfo(reason=details.get("ErrorInfo", {}).get("reason", ""))
    retry = json_format.ParseDict(
        details.get("RetryInfo", {}), error_details_pb2.RetryInfo(), ignore_unknown_fields=True
    )
    converted = exceptions.from_grpc_status(status, message, error_info=reason, details=[retry])  # type: ignore[no-untyped-call]  # so
    return converted
