"""Endpoints: one call of one thread, whatever their dependencies."""

import asyncio
import inspect
from datetime import UTC, datetime

import httpx
import pytest
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel

from core.db.models.jobs import Project
from service.deps import WriteSession
from service.http.routing import Router


class Wanted(BaseModel):
    first: int = 1
    second: str = "b"


def answer(app, router, method="GET", path="/x", **options):
    """The answer of the application with these routes alone."""
    app.router.routes[:] = router.routes

    async def ask():
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, path, **options)

    return asyncio.run(ask())


def calls(dependant):
    """Yield a route's endpoint, and all that this depends on."""
    yield dependant.call
    for wanted in dependant.dependencies:
        yield from calls(wanted)


@pytest.fixture
def router():
    return Router()


def test_no_dependency_of_a_route_takes_a_thread(app):
    routes = [context for context in iter_route_contexts(app.routes) if isinstance(context.original_route, APIRoute)]
    called = {call for route in routes for call in calls(route.dependant)}
    assert len(routes) > 100
    kinds = (inspect.iscoroutinefunction, inspect.isasyncgenfunction)
    assert [call for call in called if not any(of(call) or of(type(call).__call__) for of in kinds)] == []


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
