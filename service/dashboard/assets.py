"""Style sheet and scripts, served from memory under an address that changes with their content."""

import hashlib
import re
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import Request
from fastapi.responses import Response
from markupsafe import Markup
from starlette.exceptions import HTTPException

from service.http.responses.static_content import StaticContent
from service.http.routing import Router

router = Router()

_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FOREVER = "public, max-age=31536000, immutable"


def _load_assets(folder: Traversable, path: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _load_assets(entry, f"{path}{entry.name}/")
        elif _suffix(entry.name) in _TYPES:
            yield f"{path}{entry.name}", entry.read_bytes()


def _suffix(name: str) -> str:
    return "." + name.rpartition(".")[2]


_VENDOR = "vendor/"
_ASSETS = dict(_load_assets(files("service.dashboard").joinpath("static")))
ICONS = {
    name: Markup(drawing)  # noqa: S704 - it is a file of ours
    for name, drawing in re.findall('<symbol id="(.+?)">(.+)</symbol>', _ASSETS["vendor/lucide-0.460.0.svg"].decode())
}
"""Drawings by name, to be included in pages."""
_DOT = b"#ffd166"
_STATE_DOTS = {"pending": b"#f2c15c", "running": b"#4da3ff", "succeeded": b"#3ddc84", "failed": b"#ff5a4f"}
_ASSETS |= {
    f"icon-{state}.svg": _ASSETS["icon.svg"].replace(_DOT, colour).replace(b'r="2.6"', b'r="6"')
    for state, colour in _STATE_DOTS.items()
}
THEME = "theme.js"  # the script that runs before a page is drawn; it is no module
_OF_ONE_PAGE = "terminal.js"
MODULES = tuple(
    sorted(
        name
        for name in _ASSETS
        if name.endswith(".js") and name not in {THEME, _OF_ONE_PAGE} and not name.startswith(_VENDOR)
    )
)
"""Names of the modules. Pages announce all of them, because a browser finds imports only one after the other."""

_VERSION = hashlib.sha256(b"\0".join(n.encode() + b"\0" + _ASSETS[n] for n in sorted(_ASSETS))).hexdigest()[:12]

_SERVED = {name: StaticContent(content, _TYPES[_suffix(name)], _VERSION) for name, content in _ASSETS.items()}


def asset_url(name: str) -> str:
    """Return the address of an asset; scripts import each other relative to it."""
    return f"/ui/static/{_VERSION}/{name}"


@router.get("/ui/static/{version}/{name:path}")
async def read_asset(request: Request, version: str, name: str) -> Response:
    """Serve an asset, cached permanently if the address is of this version."""
    asset = _SERVED.get(name)
    if asset is None:
        raise HTTPException(404)
    return asset.response(request, cache_control=_FOREVER if version == _VERSION else "no-cache")
