"""Receivers that are no webhooks: chats, mail and push services, by Apprise (https://appriseit.com).

Apprise also knows addresses that run programs or reach this machine, so only the schemes listed here are taken.
"""

import logging
import threading
import time
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from core.errors import ExtraMissing, SpecInvalid
from core.notifications.deliveries import Answer
from core.notifications.public_address import resolve

HOSTED = (
    "discord",
    "gchat",
    "opsgenie",
    "pagerduty",
    "pover",
    "signl4",
    "slack",
    "tgram",
    "twilio",
    "wxteams",
    "zulip",
)
"""Schemes of services whose host Apprise knows."""
OWN_HOST = (
    *("gotify", "gotifys", "mailto", "mailtos", "matrix", "matrixs", "mmost", "mmosts", "ntfy", "ntfys", "rocket"),
    *("rockets", "workflows"),
)
"""Schemes of addresses that name a host, which has to be public."""
SCHEMES = (*HOSTED, *OWN_HOST)
_MIN_SECRET = 4  # characters of a part of an address that is taken out of messages


def check(url: str) -> None:
    """Refuse an address that Apprise cannot send to."""
    if _open(url) is None:
        scheme = urlsplit(url).scheme
        raise SpecInvalid(
            f"Apprise cannot read this address of {scheme}. https://appriseit.com/services/ describes each kind.",
            field="url",
        )


def send(url: str, message_id: str, message: dict[str, Any], allowed: list[str]) -> Answer:
    """Make one try; it takes as long as Apprise's timeouts. Raises nothing."""
    start, warnings = time.monotonic(), _Warnings()
    logger = logging.getLogger("apprise")
    logger.addHandler(warnings)
    try:
        delivered, text = _send(url, message_id, message, allowed), ""
    except (SpecInvalid, ExtraMissing, OSError) as error:
        delivered, text = False, getattr(error, "message", str(error))
    finally:
        logger.removeHandler(warnings)
    text = text or ("Accepted" if delivered else " ".join(warnings.lines) or "Apprise could not deliver it")
    return Answer(delivered=delivered, status=None, text=_hide(text, url), seconds=time.monotonic() - start)


def _send(url: str, message_id: str, message: dict[str, Any], allowed: list[str]) -> bool:
    plugin, apprise = _open(url), _load()
    if plugin is None:
        return False
    plugin.redirects = False  # one may lead to an address that is not public
    host = getattr(plugin, "smtp_host", None) or plugin.host
    if urlsplit(url).scheme in OWN_HOST and host and getattr(plugin, "mode", None) != "cloud":
        resolve(host, plugin.port or 443, allowed)
    title, _, rest = message["data"]["summary"].partition("\n")
    links = [part["url"] for part in message["data"].values() if isinstance(part, dict) and "url" in part]
    sender = apprise.Apprise(asset=_asset())
    sender.add(plugin)
    body = "\n".join([*([rest] if rest else [title]), *links, f"[{message_id}]"])
    return bool(sender.notify(body=body, title=title, body_format=apprise.NotifyFormat.TEXT))


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


def _hide(text: str, url: str) -> str:
    """Take the parts of an address out of a text, of which each may be a secret; its host is none."""
    parts = urlsplit(url)
    secrets = {parts.username, parts.password, *parts.path.split("/"), *parts.query.replace("=", "&").split("&")}
    for secret in sorted(
        (secret for secret in secrets if secret and len(secret) >= _MIN_SECRET), key=len, reverse=True
    ):
        text = text.replace(secret, "…")
    return text


class _Warnings(logging.Handler):
    """Keeps what Apprise logs in the thread that made it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        if record.thread == self._thread:
            self.lines.append(record.getMessage())
