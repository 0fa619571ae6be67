"""Ids: a prefix for the kind, and 13 of [a-z0-9]. They never look like a number."""

import secrets
import string

_ALPHABET = string.ascii_lowercase + string.digits
_LENGTH = 13


def new_id(prefix: str) -> str:
    """Make a random id, for example `j3k9…` with the prefix `j`; 67 bits of entropy."""
    return prefix + "".join(secrets.choice(_ALPHABET) for _ in range(_LENGTH))
