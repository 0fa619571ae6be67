"""Endpoints: one call of one thread, whatever their dependencies."""

import asyncio
import threading
from datetime import UTC, datetime
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


def endpoints(router):
    contexts = iter_route_contexts(router.routes)
    return [Endpoint(context) for context in contexts if isinstance(context.original_route, APIRoute)]


@pytest.fixture
def router():
    return APIRouter()


def test_every_route_of_the_service_is_served_so(app):
    assert len(endpoints(app.router)) > 100


def test_a_dependency_that_needs_a_thread_is_refused(router):
    @router.get("/x")
    def show(value: Annotated[int, Depends(lambda: 1)]) -> None: ...

    with pytest.raises(TypeError, match="has to be async"):
        endpoints(router)


def test_a_dependency_with_a_session_is_refused(router):
    async def find(session: ReadSession) -> bool:
        return session.is_active

    @router.get("/x")
    def show(value: Annotated[bool, Depends(find)]) -> None: ...

    with pytest.raises(TypeError, match="has no session"):
        endpoints(router)


def test_a_session_lives_and_ends_in_the_thread_of_its_endpoint(app, router, database):
    @router.get("/x")
    def show(session: ReadSession) -> dict[str, object]:
        taken = database.engine.pool.checkedout()
        return {"thread": threading.current_thread().name, "taken": taken, "active": session.is_active}

    found = answer(app, router).json()
    assert found["thread"].startswith("reading")
    assert (found["taken"], found["active"]) == (1, True)
    assert database.engine.pool.checkedout() == 0


def test_changes_are_committed_before_the_answer_and_not_after_an_error(app, router, database):
    @router.post("/x")
    def change(session: WriteSession, name: str) -> Wanted:
        session.add(Project(id=name, name=name, created_at=datetime.now(UTC)))
        session.flush()
        return Wanted() if name == "good" else Wanted(first="no number")

    answer(app, router, "POST", params={"name": "good"})
    answer(app, router, "POST", params={"name": "bad"})
    with database.read() as session:
        assert session.get(Project, "good") is not None
        assert session.get(Project, "bad") is None


def test_a_model_of_the_query_is_read_beside_other_parameters(app, router):
    @router.get("/x/{part}")
    def show(part: str, wanted: Annotated[Wanted, Query()], app_state: AppStateDep) -> list[object]:
        return [part, wanted.first, wanted.second, app_state.settings.api.port]

    found = answer(app, router, path="/x/p", params={"first": 2}).json()
    assert found == ["p", 2, "b", app.state.app_state.settings.api.port]


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
