from __future__ import annotations

from urllib.parse import quote

from gradient_cli.errors import UsageError

COMPARISONS = "/comparisons"  # the endpoint that creates a comparison with its jobs


def _segment(text: str) -> str:
    if text in {".", ".."}:  # which lead to another address
        raise UsageError(f"{text!r} is neither an id nor a name.", hint="The commands `list` show ids and names.")
    return quote(text, safe="")


def job_path(job_id: str) -> str:
    return f"/jobs/{_segment(job_id)}"


def storage_path(project_id: str, path: str | None = None) -> str:
    start = f"/projects/{_segment(project_id)}/storage"
    return start if path is None else f"{start}/{quote(path)}"


def range_headers(offset: int, etag: str, last: int | None = None) -> dict[str, str]:
    """Return the headers for the bytes from `offset` to the `last`, of the version with an ETag, or of any."""
    headers = {} if offset == 0 and last is None else {"Range": f"bytes={offset}-{'' if last is None else last}"}
    headers |= {"If-Range": f'"{etag}"'} if offset and last is None else {}
    return {"Accept": "*/*", "Accept-Encoding": "identity", **headers}


def comparison_path(comparison_id: str) -> str:
    return f"{COMPARISONS}/{_segment(comparison_id)}"


def template_path(noun: str, template_id: str, action: str = "") -> str:
    """Return the path of one of `schedules` or `sweeps`, or of a change of it."""
    return f"/{noun}/{_segment(template_id)}{action and '/' + action}"


def credentials_path(kind: str, project_id: str | None, name: str | None = None) -> str:
    """Return the path of `secrets` or `registries`, or of one of them by its name or host."""
    start = "" if project_id is None else f"/projects/{_segment(project_id)}"
    return f"{start}/{kind}" + ("" if name is None else f"/{_segment(name)}")
