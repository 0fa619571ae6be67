from __future__ import annotations

from urllib.parse import quote

COMPARISONS = "/comparisons"  # the endpoint that creates a comparison with its jobs


def job_path(job_id: str) -> str:
    return f"/jobs/{quote(job_id, safe='')}"


def storage_path(project_id: str, path: str | None = None) -> str:
    start = f"/projects/{quote(project_id, safe='')}/storage"
    return start if path is None else f"{start}/{quote(path)}"


def range_headers(offset: int, etag: str, last: int | None = None) -> dict[str, str]:
    """Return the headers for the bytes from `offset` to the `last`, of the version with an ETag, or of any."""
    headers = {} if offset == 0 and last is None else {"Range": f"bytes={offset}-{'' if last is None else last}"}
    headers |= {"If-Range": f'"{etag}"'} if offset and last is None else {}
    return {"Accept": "*/*", "Accept-Encoding": "identity", **headers}


def comparison_path(comparison_id: str) -> str:
    return f"{COMPARISONS}/{quote(comparison_id, safe='')}"


def template_path(noun: str, template_id: str, action: str = "") -> str:
    """Return the path of one of `schedules` or `sweeps`, or of a change of it."""
    return f"/{noun}/{quote(template_id, safe='')}{action and '/' + action}"


def secrets_path(project_id: str | None, name: str | None = None) -> str:
    start = "" if project_id is None else f"/projects/{quote(project_id, safe='')}"
    return f"{start}/secrets" + ("" if name is None else f"/{quote(name, safe='')}")


def registries_path(project_id: str | None, host: str | None = None) -> str:
    start = "" if project_id is None else f"/projects/{quote(project_id, safe='')}"
    return f"{start}/registries" + ("" if host is None else f"/{quote(host, safe='')}")
