"""Style sheet and scripts, served from memory under an address that changes with their content."""

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from service.http.file_responses import not_modified

router = APIRouter()

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_FOREVER = "public, max-age=31536000, immutable"


def _load_assets() -> dict[str, bytes]:
    return {
        entry.name: entry.read_bytes()
        for entry in files("service.dashboard").joinpath("static").iterdir()
        if _suffix(entry.name) in _TYPES
    }


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]


_ASSETS = _load_assets()
_VERSION = hashlib.sha256(b"\0".join(n.encode() + b"\0" + _ASSETS[n] for n in sorted(_ASSETS))).hexdigest()[:12]


def asset_url(name: str) -> str:
    """Return the address of an asset; scripts import each other relative to it."""
    return f"/ui/static/{_VERSION}/{name}"


@router.get("/ui/static/{version}/{name}")
async def read_asset(request: Request, version: str, name: str) -> Response:
    """Serve an asset, cached permanently if the address is of this version."""
    content = _ASSETS.get(name)
    if content is None:
        raise HTTPException(404)
    etag = f'"{_VERSION}"'
    headers = {
        "Cache-Control": _FOREVER if version == _VERSION else "no-cache",
        "Content-Type": _TYPES[_suffix(name)],
        "ETag": etag,
    }
    if not_modified(request, etag):
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)
