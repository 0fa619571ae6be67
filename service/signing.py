"""Stamps: signatures that expire. Whoever shows one was given it by this service, for this purpose, lately."""

import base64
import hashlib
import hmac
import time


class Signer:
    """Makes and checks stamps.

    Args:
        secret: Signs; who has it can make stamps.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def stamp(self, purpose: str, text: str, seconds: float) -> str:
        """A stamp on a text, good for so long: `expires.signature`, in characters that a URL takes as they are."""
        expires = int(time.time() + seconds)
        return f"{expires}.{self._sign(purpose, text, str(expires))}"

    def holds(self, purpose: str, text: str, stamp: str) -> bool:
        """Whether a stamp is ours, on this text for this purpose, and has not expired."""
        expires, _, signature = stamp.partition(".")
        wanted = self._sign(purpose, text, expires)
        if not hmac.compare_digest(signature.encode(errors="replace"), wanted.encode()):
            return False
        return time.time() < int(expires)

    def _sign(self, purpose: str, text: str, expires: str) -> str:
        signed = f"{purpose}:{text}.{expires}".encode(errors="replace")
        mac = hmac.new(self._secret, signed, hashlib.sha256)
        return base64.urlsafe_b64encode(mac.digest()).rstrip(b"=").decode()
