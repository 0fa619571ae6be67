"""Submission of many jobs in one request and one transaction, each of which succeeds or fails by itself."""

from http import HTTPStatus
from typing import TypeAlias

from fastapi.exceptions import RequestValidationError
from pydantic_core import to_json
from sqlalchemy.exc import DataError
from starlette.exceptions import HTTPException

from core.errors import GradientError, LimitReached, StoreUnavailable
from core.monitoring import tracing
from service.deps import AppState
from service.http.body_limit import MAX_JSON_BYTES
from service.http.errors import error_detail
from service.schemas.base import parse_request
from service.schemas.jobs import BatchError, BatchJob, BatchResult, BatchResults, RawBatch
from service.submission.create import log_submission, prepare, present
from service.submission.insert import InsertedJob, PreparedJob, RequestOrigin, insert_each
from service.submission.members import refuse_array

MAX_UNREADABLE = 100  # jobs of a batch that are too large, or do not fit a submission, after which no other job is read

_TOO_MANY_UNREADABLE = HTTPException(
    422, f"{MAX_UNREADABLE} jobs before this one are not jobs, so it was not read. Correct them and send it again."
)

_Refusal: TypeAlias = GradientError | RequestValidationError | HTTPException | DataError


def submit(app_state: AppState, key_id: str, request_id: str, raw: bytes) -> BatchResults:
    """Create the jobs of a batch that are valid and within the limits.

    Returns a result for each job, in the order of the batch. Raises `StoreUnavailable`: the database does not answer;
    no job was created.
    """
    requested = parse_request(RawBatch, raw).jobs
    allowed, over_limit = app_state.limits.submissions.acquire_some(key_id, len(requested))
    with tracing.span("submit"):
        checked = _check_all(app_state, key_id, request_id, requested[:allowed])
        prepared = [each for each in checked if isinstance(each, PreparedJob)]
        with app_state.database.write() as session:
            inserted = iter(insert_each(session, app_state, prepared))
    results = [_result(app_state, next(inserted)) if isinstance(each, PreparedJob) else each for each in checked]
    if over_limit is not None:
        results += [_refused(over_limit)] * (len(requested) - allowed)
    return BatchResults(results=results)


def _check_all(
    app_state: AppState, key_id: str, request_id: str, requested: list[object]
) -> list[PreparedJob | BatchResult]:
    """Prepare the jobs of a batch; those that are refused have their result."""
    checked: list[PreparedJob | BatchResult] = []
    unreadable = 0
    for given in requested:
        if unreadable == MAX_UNREADABLE:
            checked.append(_refused(_TOO_MANY_UNREADABLE))
            continue
        try:
            checked.append(_prepare(app_state, key_id, request_id, given))
        except StoreUnavailable:
            raise  # not of this job
        except (GradientError, RequestValidationError, HTTPException) as error:
            unreadable += not isinstance(error, GradientError)
            checked.append(_refused(error))  # the error itself would keep the whole job in memory
    return checked


def _prepare(app_state: AppState, key_id: str, request_id: str, given: object) -> PreparedJob:
    text = to_json(given)
    if len(text) > MAX_JSON_BYTES:
        raise HTTPException(413, f"The job is larger than {MAX_JSON_BYTES:,} bytes, the limit here.")
    request = parse_request(BatchJob, text)
    refuse_array(request)
    return prepare(app_state, RequestOrigin(key_id, request_id, request.idempotency_key), request)


def _result(app_state: AppState, outcome: InsertedJob | _Refusal) -> BatchResult:
    if not isinstance(outcome, InsertedJob):
        return _refused(outcome)
    log_submission(outcome)
    status = HTTPStatus.CREATED if outcome.created else HTTPStatus.OK
    return BatchResult(status=status, job=present(app_state, outcome))


def _refused(error: _Refusal) -> BatchResult:
    detail = error_detail(error)
    wait = error.retry_after if isinstance(error, LimitReached) else None
    field = "idempotencyKey" if detail.field == "Idempotency-Key" else detail.field
    return BatchResult(
        status=detail.status, error=BatchError(**detail.model_dump() | {"field": field}, retry_after=wait)
    )
