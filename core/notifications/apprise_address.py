"""Receivers that are no webhooks: chats, mail and push services, by Apprise (https://appriseit.com).

Apprise also knows addresses that run programs or reach this machine, so only the schemes listed here are taken.
"""

import logging
import re
import threading
from collections.abc import Sequence
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from core.errors import ExtraMissing, SpecInvalid
from core.notifications.deliveries import Answer
from core.notifications.webhook import ALLOWED_BY
from core.system.public_requests import resolve

_OWN_HOST = (
    *("gotify", "gotifys", "mailto", "mailtos", "matrix", "matrixs", "mmost", "mmosts", "ntfy", "ntfys", "rocket"),
    *("rockets", "workflows"),
)
"""Schemes of addresses that name a host, which has to be public."""
SCHEMES = (
    *("discord", "gchat", "opsgenie", "pagerduty", "pover", "signl4", "slack", "tgram", "twilio", "wxteams", "zulip"),
    *_OWN_HOST,
)
_SECRET = re.compile(r"[^/:@?&=#]{4,}")  # part of an address that is taken out of messages


def check(url: str) -> None:
    """Refuse an address that Apprise cannot send to."""
    if _open(url) is None:
        raise SpecInvalid(
            f"Apprise cannot read this address of {urlsplit(url).scheme}. https://appriseit.com/services/ describes "
            "each kind.",
            field="url",
        )


def send(url: str, message_id: str, message: dict[str, Any], allowed: Sequence[str]) -> Answer:
    """Make one try; it takes as long as Apprise's timeouts."""
    plugin, apprise, parts = _open(url), _load(), urlsplit(url)
    plugin.redirects = False  # one may lead to an address that is not public
    host = getattr(plugin, "smtp_host", None) or plugin.host
    if parts.scheme in _OWN_HOST and host and getattr(plugin, "mode", None) != "cloud":
        resolve(host, plugin.port or 443, allowed, ALLOWED_BY)
    title, _, rest = message["data"]["summary"].partition("\n")
    links = [part["url"] for part in message["data"].values() if isinstance(part, dict) and "url" in part]
    body = "\n".join([rest or title, *links, f"[{message_id}]"])
    sender, warnings = apprise.Apprise(asset=_asset()), _Warnings()
    sender.add(plugin)
    logger = logging.getLogger("apprise")
    logger.addHandler(warnings)
    try:
        delivered = bool(sender.notify(body=body, title=title, body_format=apprise.NotifyFormat.TEXT))
    finally:
        logger.removeHandler(warnings)
    text = "Accepted" if delivered else " ".join(warnings.lines) or "Apprise could not deliver it"
    for secret in sorted(set(_SECRET.findall(url)) - {parts.scheme, parts.hostname}, key=len, reverse=True):
        text = text.replace(secret, "…")
    return Answer(text, delivered=delivered)


def _open(url: str) -> Any:  # noqa: ANN401 - a class of a library that may be missing
    return _load().Apprise.instantiate(url, asset=_asset(), suppress_exceptions=True)


def _asset() -> Any:  # noqa: ANN401 - as above
    return _load().AppriseAsset(async_mode=False, app_id="Gradient Jobs", http_redirects=False)


def _load() -> ModuleType:
    try:
        import apprise  # noqa: PLC0415 - optional
    except ModuleNotFoundError as error:
        raise ExtraMissing("Receivers other than webhooks need", error, "notify") from error
    return apprise


class _Warnings(logging.Handler):
    """Keeps what Apprise logs in the thread that made it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.lines.append(record.getMessage())
