"""A browser without scripts: a client that holds a session cookie and asks for pages."""

from collections.abc import Iterator

import httpx
import pytest
from support.deployment import EMPTY_SSL_CONTEXT
from support.live_service import LiveServer

PAGE_HEADERS = {"Accept": "text/html,application/xhtml+xml"}


@pytest.fixture
def anonymous_browser(live_server: LiveServer) -> Iterator[httpx.Client]:
    """A browser that has not signed in."""
    with httpx.Client(
        base_url=live_server.url,
        headers={**PAGE_HEADERS, "Origin": live_server.url},
        timeout=30,
        verify=EMPTY_SSL_CONTEXT,
    ) as client:
        yield client


@pytest.fixture
def signed_in_browser(anonymous_browser: httpx.Client, live_server: LiveServer) -> httpx.Client:
    """A browser that has signed in."""
    answer = anonymous_browser.post("/ui/login", data={"key": live_server.api_key})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/jobs")
    return anonymous_browser
