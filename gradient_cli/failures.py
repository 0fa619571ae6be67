"""Connection failures, each with a message and a hint."""

from __future__ import annotations

import http.client
import socket
import ssl

from gradient_cli.errors import LinkError

# The first matching row is used: a subclass stands before its base classes.
# Columns: error types, message, hint, transient.
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
    """Convert a connection failure to the LinkError shown to the user.

    Raises:
        Exception: The error itself, if it is not a connection failure.
    """
    if isinstance(error, LinkError):
        return error
    told = (getattr(error, name, "") for name in ("verify_message", "reason", "strerror"))
    detail = next((text for text in told if text), "it broke off")
    for kinds, sentence, hint, transient in _FAILURES:
        if isinstance(error, kinds):
            return LinkError(sentence.format(url=url, host=host, detail=detail), hint=hint, transient=transient)
    raise error
