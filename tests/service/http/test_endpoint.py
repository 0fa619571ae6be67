"""Endpoints: one call of one thread, whatever their dependencies."""

import asyncio
import threading
from typing import Annotated

import httpx
import pytest
from fastapi import APIRouter, Depends, Query, Response
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel

from core.db.models.jobs import Project
from service.deps import AppStateDep, ReadSession, WriteSession
from service.http.dispatcher import Dispatcher
from service.http.endpoint import Endpoint


class Wanted(BaseModel):
    first: int = 1
    second: str = "b"


def answer(app, router, method="GET", path="/x", **options):
    """The answer of the application with these routes alone."""
    app.include_router(router)
    app.router.routes[:] = [Dispatcher([app.router.routes[-1]])]

    async def ask():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return asyncio.run(ask())


@pytest.fixture
def router():
    return APIRouter()


def test_every_route_of_the_service_is_served_so(app):
    found = [
        Endpoint(context)
        for context in iter_route_contexts(app.router.routes)
        if isinstance(context.original_route, APIRoute)
    ]
    assert len(found) > 100


def test_a_dependency_that_needs_a_thread_is_refused(app, router):
    @router.get("/x")
    def show(value: Annotated[int, Depends(lambda: 1)]) -> None: ...

    with pytest.raises(TypeError, match="has to be async"):
        answer(app, router)


def test_a_dependency_with_a_session_is_refused(app, router):
    async def find(session: ReadSession) -> int:
        return 1

    @router.get("/x")
    def show(value: Annotated[int, Depends(find)]) -> None: ...

    with pytest.raises(TypeError, match="has no session"):
        answer(app, router)


def test_a_session_lives_and_ends_in_the_thread_of_its_endpoint(app, router, database):
    @router.get("/x")
    def show(session: ReadSession) -> dict[str, object]:
        return {"thread": threading.current_thread().name, "idle": database.engine.pool.checkedin()}

    before = database.engine.pool.checkedin()
    found = answer(app, router).json()
    assert found["thread"].startswith("reading")
    assert database.engine.pool.checkedin() >= before


def test_changes_are_committed_before_the_answer_and_not_after_an_error(app, router, database):
    @router.post("/x")
    def change(session: WriteSession, name: str) -> Wanted:
        session.add(Project(id=name, name=name))
        session.flush()
        return Wanted() if name == "good" else Wanted(first="no number")

    answer(app, router, "POST", params={"name": "good"})
    answer(app, router, "POST", params={"name": "bad"})
    with database.read() as session:
        assert session.get(Project, "good") is not None
        assert session.get(Project, "bad") is None


def test_a_model_of_the_query_leaves_the_parameters_beside_it(app, router):
    @router.get("/x/{part}")
    def show(
        part: str, wanted: Annotated[Wanted, Query()], app_state: AppStateDep, *, third: bool = False
    ) -> list[str]:
        return [part, str(wanted.first), wanted.second, str(third)]

    assert answer(app, router, path="/x/p", params={"first": 2, "third": "true"}).json()[:2] == ["p", "2"]


def test_all_that_is_wrong_is_said_at_once(app, router):
    @router.get("/x")
    def show(first: int, second: int) -> None: ...

    refused = answer(app, router, params={"first": "a"})
    assert refused.status_code == 422
    assert "first: must be a valid integer" in refused.text
    assert "second: required, but missing" in refused.text


def test_status_and_headers_that_an_endpoint_sets_are_sent(app, router):
    @router.get("/x", status_code=201)
    def show(response: Response) -> Wanted:
        response.status_code = 202
        response.headers["x-extra"] = "1"
        return Wanted()

    found = answer(app, router)
    assert (found.status_code, found.headers["x-extra"], found.json()) == (202, "1", {"first": 1, "second": "b"})
