"""Signing in to a registry at a pull, and what to say where that was not enough."""

import re

from core.image_registry import Login, registry_of

# As registries and the engine put it; a private image is often said not to exist.
_UNWELCOME = re.compile(
    r"unauthorized|authentication required|no basic auth|access.{0,20}denied|denied:|docker login|incorrect username",
    re.IGNORECASE,
)


def auth_config(login: Login | None) -> dict[str, str] | None:
    """The login as the SDK takes it; None has it use what the worker's user is signed in with."""
    return None if login is None else {"username": login.username, "password": login.password}


def refused(reference: str, why: str, login: Login | None) -> str:
    """Why an image could not be pulled, with whose word was not taken; never with the password."""
    if not _UNWELCOME.search(why):
        return f"{reference}: {why}"
    host = registry_of(reference)
    if login is None:
        return (
            f"{reference}: {host} wants to know who asks. `gradient-cli registries set {host}` stores that for all "
            f"jobs. It said: {why}"
        )
    shown = why.replace(login.password, "•••")
    return f"{reference}: {host} does not let {login.username!r} have it. Is the password right? It said: {shown}"
