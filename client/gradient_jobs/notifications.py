"""Receivers outside the service, which are told when jobs end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gradient_cli.api.client import Api

RecordList = list[dict[str, Any]]


class Notifications:
    """The receivers of a server, as dictionaries with the names of the HTTP API."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def save(
        self, name: str, url: str, *, events: Sequence[str] = (), jobs: Sequence[str] = (), quiet_seconds: int = 0
    ) -> dict[str, Any]:
        """Save a receiver, in place of one with its name; return it with the secret that signs its messages.

        The arguments are the options of `gradient-cli notifications create`.
        """
        settings: dict[str, Any] = {"url": url, "jobs": list(jobs), "quietSeconds": quiet_seconds}
        if events:
            settings["events"] = list(events)
        return self._api.save_receiver(name, settings)

    def list(self) -> RecordList:
        receivers: RecordList = self._api.receivers()["receivers"]
        return receivers

    def deliveries(self, name: str) -> RecordList:
        """Return the last 200 messages to a receiver, newest first, with what came back."""
        deliveries: RecordList = self._api.deliveries(name, limit=200)["deliveries"]
        return deliveries

    def test(self, name: str) -> dict[str, Any]:
        """Send a test message; `deliveries` says what came back."""
        return self._api.test_receiver(name)

    def replay(self, name: str, message_id: str) -> dict[str, Any]:
        return self._api.replay_delivery(name, message_id)

    def delete(self, name: str) -> None:
        self._api.delete_receiver(name)
