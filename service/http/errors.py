"""Error responses: a table from error class to status, and one format for all of them."""

import difflib
import http
import logging
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection

from core import errors
from core.security.actor import Unwritten, acting_key
from core.system.filesystem import FULL_DISK_ERRNOS
from service.deps import state_of
from service.schemas.base import ErrorDetail, ErrorView

logger = logging.getLogger(__name__)

STATUS_BY_ERROR: dict[type[errors.GradientError], int] = {
    errors.GradientError: 500,
    errors.NotFound: 404,
    errors.JobNotFound: 404,
    errors.ComparisonNotFound: 404,
    errors.ScheduleNotFound: 404,
    errors.SweepNotFound: 404,
    errors.TrialNotFound: 404,
    errors.ProjectNotFound: 404,
    errors.WorkerNotFound: 404,
    errors.WorkspaceNotFound: 404,
    errors.ArtifactNotFound: 404,
    errors.StoredFileNotFound: 404,
    errors.CredentialNotFound: 404,
    errors.OutputRemoved: 410,
    errors.SpecInvalid: 400,
    errors.SettingsInvalid: 500,
    errors.MachineTypeUnknown: 400,
    errors.WorkspaceInvalid: 400,
    errors.CursorInvalid: 400,
    errors.IdempotencyMismatch: 422,
    errors.Unauthorized: 401,
    errors.AdministratorOnly: 403,
    errors.KeyNeeded: 403,
    errors.OwnerOnly: 403,
    errors.KeyRefused: 403,
    errors.SecretUnreadable: 503,
    errors.StoreUnavailable: 503,
    errors.DatabaseMissing: 503,
    errors.DatabaseFull: 507,
    errors.ExtraMissing: 503,
    errors.StorageFull: 507,
    errors.StorageClosed: 501,
    errors.BudgetSpent: 402,
    errors.LimitReached: 429,
    errors.SchemaMismatch: 503,
    errors.LeaseLost: 409,
    errors.WorkerNameTaken: 409,
    errors.ExecDisabled: 403,
    errors.TensorBoardUnavailable: 409,
    errors.JobNotEnterable: 409,
    errors.JobNotKept: 409,
}
"""HTTP status of every class in `core.errors`; a missing class is a bug in this module."""

_REFUSED = {401, 402, 403}  # statuses that the record keeps
_HEADERS = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "5"}, 503: {"Retry-After": "2"}}
_ERROR_NAMES = {413: "TooLarge", 416: "RangeNotSatisfiable", 422: "Unprocessable"}  # phrases differ by Python version
_MAX_PROBLEMS = 3
_SHOWN_PATH = 300


def _declare_responses(descriptions: Mapping[int, str]) -> dict[int | str, dict[str, Any]]:
    # By reference: FastAPI makes a validator for each model of each route, which was most of an application's start.
    return {
        status: {
            "description": description,
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{ErrorView.__name__}"}}},
            "headers": {name: {"schema": {"type": "string"}} for name in _HEADERS.get(status, ())},
        }
        for status, description in descriptions.items()
    }


PUBLIC_RESPONSES = _declare_responses(
    {
        400: "The request has an invalid value; `field` names it.",
        403: "A page of another site sent the request, or the job belongs to another API key.",
        413: "The request is too large.",
        421: "The Host header names another service.",
        500: "The service failed; `message` has the error's id in the service's log.",
    }
)
"""OpenAPI declarations of the errors that any client can get, by status."""

RESPONSES = PUBLIC_RESPONSES | _declare_responses(
    {
        401: "The API key is missing, unknown or revoked.",
        404: "Not found or deleted.",
        422: "The request has an invalid structure; `field` names the location.",
        429: "A limit of this key or project is reached; `Retry-After` gives the seconds until the next try.",
        503: "A database or file store does not answer; try again.",
    }
)
"""OpenAPI declarations of the errors that clients with a key can get, by status."""


def install_error_handlers(app: FastAPI) -> None:
    """Install handlers that return every error as `{"error": …}`."""
    app.add_exception_handler(errors.GradientError, _handle_gradient_error)
    app.add_exception_handler(RequestValidationError, _handle_validation_error)
    app.add_exception_handler(HTTPException, _handle_http_error)
    app.add_exception_handler(OSError, _handle_os_error)
    app.add_exception_handler(DataError, _handle_data_error)
    app.add_exception_handler(ClientDisconnect, _handle_client_disconnect)


def error_response(
    status: int, name: str, message: str, *, field: str | None = None, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    body: dict[str, Any] = {"name": name, "status": status, "message": message}
    if field is not None:
        body["field"] = field
    return JSONResponse({"error": body}, status, {**_HEADERS.get(status, {}), **(headers or {})})


def error_detail(error: Exception) -> ErrorDetail:
    """Return what is wrong, of an error that a client causes."""
    if isinstance(error, errors.GradientError):
        status = STATUS_BY_ERROR[type(error)]
        return ErrorDetail(name=type(error).__name__, status=status, message=error.message, field=error.field)
    if isinstance(error, RequestValidationError):
        problems = list(error.errors())
        shown = [_describe_problem(problem) for problem in problems[:_MAX_PROBLEMS]]
        if len(problems) > _MAX_PROBLEMS:
            shown.append(f"And {len(problems) - _MAX_PROBLEMS} more.")
        return ErrorDetail(
            name="ValidationError", status=422, message=" ".join(shown), field=_field_path(problems[0]["loc"])
        )
    if isinstance(error, DataError):
        # PostgreSQL accepts no NUL in text, not even in a query's parameters; SQLite does.
        message = "A value contains a NUL or another character that cannot be stored."
        return ErrorDetail(name="ValidationError", status=422, message=message)
    if isinstance(error, HTTPException):
        phrase = http.HTTPStatus(error.status_code).phrase
        name = _ERROR_NAMES.get(error.status_code, phrase.replace(" ", "").replace("-", ""))
        return ErrorDetail(name=name, status=error.status_code, message=error.detail)
    raise error


def _detail_response(detail: ErrorDetail, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return error_response(detail.status, detail.name, detail.message, field=detail.field, headers=headers)


def http_error_response(error: HTTPException) -> JSONResponse:
    return _detail_response(error_detail(error), error.headers)


def problem(loc: Sequence[str | int], message: str) -> RequestValidationError:
    """Build a validation error found by the service's own code, with its location and message."""
    return RequestValidationError([{"type": "value_error", "loc": tuple(loc), "msg": message, "input": None}])


def _handle_gradient_error(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, errors.GradientError):
        raise error
    detail = error_detail(error)
    if detail.status in _REFUSED:
        _record_refusal(request, detail)
    if detail.status == http.HTTPStatus.INTERNAL_SERVER_ERROR:
        return internal_error_response(error)
    headers = {"Retry-After": str(error.retry_after)} if isinstance(error, errors.LimitReached) else None
    return _detail_response(detail, headers)


def _record_refusal(request: HTTPConnection, detail: ErrorDetail) -> None:
    """Record who was refused what. Of somebody without a key it keeps only the address: anyone can send any path."""
    key_id, scope = acting_key(), request.scope
    target = "" if key_id is None else f"{scope.get('method', 'WEBSOCKET')} {scope['path'][:_SHOWN_PATH]}"
    address = request.client.host if request.client else None
    state_of(request).record.unwritten.append(Unwritten("refused", target, detail.name, key_id, address))


def _handle_http_error(request: HTTPConnection, error: Exception) -> JSONResponse:
    if not isinstance(error, HTTPException):
        raise error
    detail = error.detail
    where = f"{request.scope.get('method', 'WEBSOCKET')} {request.url.path}"
    if error.status_code == http.HTTPStatus.NOT_FOUND and detail == "Not Found":
        detail = f"There is nothing at {where}. /openapi.json lists every path."
    elif error.status_code == http.HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        detail = f"{where} does not exist; this path takes {allowed}."
    return http_error_response(HTTPException(error.status_code, detail, error.headers))


def _handle_os_error(_request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, OSError) or error.errno not in FULL_DISK_ERRNOS:
        return internal_error_response(error)
    logger.warning("disk_full", exc_info=error)
    where = f" ({error.filename} cannot be written)" if error.filename else ""
    return error_response(507, "StorageFull", f"The disk of GRADIENT_HOME is full{where}. Delete jobs, then try again.")


def _handle_data_error(_request: Request, error: Exception) -> JSONResponse:
    logger.warning("value_refused_by_database", exc_info=error)
    return _detail_response(error_detail(error))


def _handle_client_disconnect(_request: Request, _error: Exception) -> JSONResponse:
    return error_response(400, "RequestIncomplete", "The request ended early; send it again.")


def internal_error_response(error: Exception) -> JSONResponse:
    """Build the 500 response; details go to the log under an incident id."""
    found_by = secrets.token_hex(4)
    logger.error("incident", extra={"incident": found_by}, exc_info=error)
    return error_response(
        500,
        "InternalError",
        f"The service failed; the request was not at fault. The service's log has details under the id {found_by}.",
    )


def _handle_validation_error(_request: Request, error: Exception) -> JSONResponse:
    return _detail_response(error_detail(error))


def _field_path(loc: Sequence[str | int]) -> str | None:
    # Without the first part, its source (body, query, header), which is plain from the field's name.
    return ".".join(str(part)[:80] for part in loc[1:]) or None


_RENAMED = {"budget": "maxCost", "maxDollars": "maxCost", "maxHours": "maxGpuHours"}


def _describe_problem(problem: Mapping[str, Any]) -> str:
    field = _field_path(problem["loc"])
    if problem["type"] == "extra_forbidden":
        names = (problem.get("ctx") or {}).get("known", ())
        name = str(problem["loc"][-1])
        near = [_RENAMED[name]] if _RENAMED.get(name) in names else difflib.get_close_matches(name[:80], names, n=1)
        return f"{_truncate(name)} is not a field here{f'; did you mean {near[0]!r}?' if near else '.'}"
    if problem["type"] == "missing":
        return f"{field or 'The body'}: required, but missing."
    message = str(problem["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should be", "must be").partition(", unable to parse")[0].rstrip(".")
    given = problem.get("input")
    if problem["type"] != "value_error" and isinstance(given, str | int | float):
        message += f", not {_truncate(given)}"
    return f"{field}: {message}." if field else f"{message[:1].upper()}{message[1:]}."


def _truncate(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"  # noqa: PLR2004 - part of a line
