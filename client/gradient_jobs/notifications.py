"""Receivers outside the service, which are told when jobs end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradient_cli.api.client import Api


class Notifications:
    """The receivers of a server, as dictionaries with the names of the HTTP API."""

    def __init__(self, api: Api) -> None:
        self._call = api.notifications

    def save(
        self, name: str, url: str, *, events: Sequence[str] = (), jobs: Sequence[str] = (), quiet_seconds: int = 0
    ) -> dict[str, Any]:
        """Save a receiver, in place of one with its name; return it with the secret that signs its messages.

        The arguments are the options of `gradient-cli notifications create`.
        """
        settings = {"url": url, "events": list(events), "jobs": list(jobs), "quietSeconds": quiet_seconds}
        return self._call("PUT", name, body=settings)

    def list(self) -> Any:  # noqa: ANN401 - from JSON
        return self._call("GET")["receivers"]

    def deliveries(self, name: str) -> Any:  # noqa: ANN401 - from JSON
        """Return the last messages to a receiver, newest first, with what came back."""
        return self._call("GET", name, "deliveries")["deliveries"]

    def test(self, name: str) -> dict[str, Any]:
        """Send a test message; `deliveries` says what came back."""
        return self._call("POST", name, "test")

    def replay(self, name: str, message_id: str) -> dict[str, Any]:
        return self._call("POST", name, "deliveries", message_id, "replay")

    def delete(self, name: str) -> None:
        self._call("DELETE", name)
