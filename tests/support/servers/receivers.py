"""Receivers of notifications: a webhook that checks what it is sent, and a mailbox."""

import base64
import email.policy
import hashlib
import hmac
import json
import time
from collections import Counter
from email.message import EmailMessage

from pytest_httpserver import HTTPServer
from support.deployment import wait_until
from werkzeug import Response


class Receiver:
    """A server that takes messages, checks their signatures, and answers as it is told."""

    def __init__(self) -> None:
        self.server = HTTPServer(host="127.0.0.1", threaded=True)
        self.secret = ""
        self.messages: list[tuple[str, dict]] = []
        self.answer = lambda: Response("taken", 200)
        self.server.expect_request("/hook", method="POST").respond_with_handler(self._take)
        self.server.start()

    @property
    def url(self) -> str:
        return self.server.url_for("/hook")

    def _take(self, request) -> Response:
        headers = request.headers
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + request.data
        key = base64.b64decode(self.secret.removeprefix("whsec_"))
        wanted = base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()
        assert headers["webhook-signature"] == f"v1,{wanted}"
        assert abs(time.time() - int(headers["webhook-timestamp"])) < 60
        self.messages.append((headers["webhook-id"], json.loads(request.data)))
        return self.answer()

    def types(self) -> Counter[str]:
        return Counter(message["type"] for _, message in self.messages)

    def wait_for(self, count: int) -> list[tuple[str, dict]]:
        wait_until(lambda: len(self.messages) >= count, f"{count} messages, of {self.messages}")
        return self.messages


class Mailbox:
    """An SMTP server that keeps what it is sent."""

    def __init__(self) -> None:
        self.mails: list[EmailMessage] = []
        self.refuses = True

    async def handle_DATA(self, _server, _session, envelope) -> str:  # noqa: N802 - aiosmtpd's name
        if self.refuses:
            self.refuses = False
            return "451 Try again later"
        self.mails.append(email.message_from_bytes(envelope.content, policy=email.policy.default))
        return "250 Message accepted"
