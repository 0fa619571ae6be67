"""Endpoints: one call of one thread, whatever their dependencies."""

import asyncio
from datetime import UTC, datetime

import httpx
import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel

from core.db.models.jobs import Project
from service.deps import WriteSession
from service.http.endpoint import Dispatcher, Endpoint


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
