"""Every way a connection can fail, as a sentence and what to do next."""

from __future__ import annotations

import http.client
import socket
import ssl

from gradient_cli.errors import LinkError

# The first row that fits is used: an error's own kind stands before the wider kinds it belongs to.
# Columns: kind of error, sentence, what to do, whether trying again may help.
_FAILURES: tuple[tuple[tuple[type[Exception], ...], str, str, bool], ...] = (
    (
        (ConnectionRefusedError,),
        "nothing answers at {url}",
        "Is the server running? `gradient-server up` starts one here; --url names another.",
        True,
    ),
    ((socket.gaierror,), "the name {host} cannot be resolved", "Check the address and the network.", True),
    ((TimeoutError,), "{url} did not answer in time", "Check the network, or try again later.", True),
    (
        (ssl.SSLCertVerificationError,),
        "the certificate of {url} is not trusted: {detail}",
        "Check the address; for a certificate of your own, set SSL_CERT_FILE to its authority.",
        False,
    ),
    ((ssl.SSLError,), "no TLS connection to {url}: {detail}", "Is it http:// there, not https://?", True),
    ((http.client.RemoteDisconnected,), "{url} closed the connection without an answer", "Try again.", True),
    (
        (http.client.BadStatusLine, http.client.LineTooLong),
        "what answers at {url} does not speak HTTP",
        "Check scheme, host and port of the address.",
        False,
    ),
    ((OSError, http.client.HTTPException), "connection to {url} lost: {detail}", "Try again.", True),
)


def explain(error: Exception, url: str, host: str) -> LinkError:
    """The failure of a connection as the client tells it.

    Raises:
        Exception: The error itself, where it is none of a connection.
    """
    if isinstance(error, LinkError):
        return error
    told = (getattr(error, name, "") for name in ("verify_message", "reason", "strerror"))
    detail = next((text for text in told if text), "it broke off")
    for kinds, sentence, hint, transient in _FAILURES:
        if isinstance(error, kinds):
            return LinkError(sentence.format(url=url, host=host, detail=detail), hint=hint, transient=transient)
    raise error
