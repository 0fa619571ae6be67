"""A browser without scripts: a client that holds a session cookie and asks for pages."""

from collections.abc import Iterator

import httpx
import pytest
from support.deployment import WITHOUT_TLS
from support.live_service import Live

PAGES = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def visitor(live: Live) -> Iterator[httpx.Client]:
    """A browser that has not signed in."""
    with httpx.Client(
        base_url=live.url, headers={**PAGES, "Origin": live.url}, timeout=30, verify=WITHOUT_TLS
    ) as client:
        yield client


@pytest.fixture
def person(visitor: httpx.Client, live: Live) -> httpx.Client:
    """A browser that has signed in."""
    answer = visitor.post("/ui/login", data={"key": live.secret})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")
    return visitor
