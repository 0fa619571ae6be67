"""Unauthenticated links to artifact files, which expire after 8 hours.

A link also expires with the API key that listed the files.
"""

from typing import Annotated
from urllib.parse import quote

from fastapi import Query, Request, Response

from core.errors import Unauthorized
from core.jobs import queries
from core.security.visibility import seeing_as
from core.storage.retention import OutputKind
from service.app_state import AppState
from service.auth.authentication import Principal, viewer_of
from service.deps import AppStateDep, ReadSession
from service.http.path_convertor import FILE
from service.http.responses import file_responses
from service.http.routing import Router
from service.original.protocol_dispatch import PREFIX
from service.presenters.outputs.artifacts import file_response
from service.presenters.outputs.removed import REMOVED_RESPONSE, check_not_removed

router = Router(reads_in=lambda lanes: lanes.files)

LINK_SECONDS = 8 * 3600
_PURPOSE = "artifact-link"


def signed_link(request: Request, app_state: AppState, caller: Principal, job_id: str, path: str) -> str:
    """Return a file's absolute address, under the public URL if one is configured, else under the request's host name.

    The link works no longer than the caller's key.
    """
    base = app_state.settings.api.public_url or str(request.base_url)
    stamp = app_state.signer.sign(_PURPOSE, f"{job_id}/{path}", caller.id)
    # The stamp is in the query string, which is not logged.
    return f"{base.rstrip('/')}{PREFIX}/artifact/{job_id}/{quote(path)}?stamp={stamp}"


@router.get(
    f"/artifact/{{job_id}}/{{path:{FILE}}}",
    name="original_read_artifact",
    response_class=Response,
    responses={
        **file_responses.RESPONSES,
        304: {"description": "Not modified: the client has this version."},
        **REMOVED_RESPONSE,
    },
    openapi_extra=file_responses.declare_request_headers("Range", "If-Range", "If-None-Match"),
)
def read_artifact(
    request: Request,
    session: ReadSession,
    app_state: AppStateDep,
    job_id: str,
    path: str,
    stamp: Annotated[str, Query(description="from the link that `artifactsList` returned")] = "",
) -> Response:
    """Read a file by its signed link, without a key."""
    key_id = app_state.signer.key_id(_PURPOSE, f"{job_id}/{path}", stamp, LINK_SECONDS)
    if key_id is None:
        raise Unauthorized(
            "This link is damaged or older than 8 hours, or its API key is no longer valid. List the job's "
            "artifacts for a new link."
        )
    with seeing_as(viewer_of(app_state, key_id)):
        job = queries.get(session, job_id)
    check_not_removed(session, job, OutputKind.ARTIFACTS)
    opened = app_state.artifacts.open(job.id, job.attempt, path)
    return file_response(request, opened, path)
