"""A browser without scripts: a client that holds a session cookie and asks for pages."""

from collections.abc import Iterator

import httpx
import pytest
from support.live_service import InProcessServer, LiveServer

PAGE_HEADERS = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def anonymous_browser(server: LiveServer | InProcessServer) -> Iterator[httpx.Client]:
    """A browser that has not signed in."""
    with server.client(headers={**PAGE_HEADERS, "Origin": server.url}) as client:
        yield client


@pytest.fixture
def signed_in_browser(anonymous_browser: httpx.Client, server: LiveServer | InProcessServer) -> httpx.Client:
    """A browser that has signed in."""
    answer = anonymous_browser.post("/ui/login", data={"key": server.api_key})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")
    return anonymous_browser
