from typing import Any

_JOB_OPERATIONS = (
    "show_job",
    "stop_job",
    "clone_job",
    "list_events",
    "read_log",
    "read_raw_log",
    "read_metrics",
    "delete_job",
)
_OUTPUT_OPERATIONS = ("list_artifacts", "read_zip")


def _links_to(operations: tuple[str, ...], parameter: str, where: str) -> dict[str, Any]:
    return {name: {"operationId": name, "parameters": {parameter: f"$response.body#/{where}"}} for name in operations}


LINKS_FROM_JOB: dict[str, Any] = _links_to((*_JOB_OPERATIONS, *_OUTPUT_OPERATIONS), "job_id", "id") | _links_to(
    ("show_project",), "project_id", "projectId"
)
"""Links from a job to everything about it."""

LINKS_FROM_JOB_LIST: dict[str, Any] = _links_to(
    (*_JOB_OPERATIONS[:1], *_JOB_OPERATIONS[3:-1], *_OUTPUT_OPERATIONS), "job_id", "jobs/0/id"
)
"""Links from a list of jobs to everything that can be read about the first."""

LINKS_FROM_PROJECT: dict[str, Any] = _links_to(("show_project",), "project_id", "id")

LINKS_FROM_ARTIFACTS: dict[str, Any] = {
    "read_artifact": {
        "operationId": "read_artifact",
        "parameters": {"job_id": "$request.path.job_id", "path": "$response.body#/files/0/path"},
    }
}
"""Links from a list of artifacts to the content of the first."""
