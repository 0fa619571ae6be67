"""The OpenAPI document, built at its first request and then kept as bytes."""

from functools import lru_cache

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from service.http.json_body import describe_bodies
from service.http.responses.static_content import StaticContent

PATH = "/openapi.json"


def install(app: FastAPI) -> None:
    """Serve the application's document, with the schemas of all bodies; FastAPI's route would encode it each time."""
    describe_bodies(app)
    app.add_route(PATH, _show_document, include_in_schema=False)


async def _show_document(request: Request) -> Response:
    return _content(request.app).response(request)


@lru_cache(1)  # the process has one application; tests have several
def _content(app: FastAPI) -> StaticContent:
    return StaticContent(bytes(JSONResponse(app.openapi()).body), "application/json")
