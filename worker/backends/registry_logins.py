"""Logins to registries of images, and what is said when one is refused."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from core.catalogue.registry_hosts import RegistryCredentials, registry_host
from worker.backends.base import FindLogin, LaunchError

# Messages of registries and of the engine; a private image is often reported as missing.
_LOGIN_REFUSED = re.compile(
    r"unauthorized|authentication required|no basic auth|access.{0,20}denied|denied:|docker login|incorrect username",
    re.IGNORECASE,
)


@contextmanager
def pull_auth(find: FindLogin, image: str) -> Iterator[dict[str, str] | None]:
    """Yield username and password for an image's registry, in the format of Docker's engine; None: there is no login.

    Raises `LaunchError`: the stored login cannot be read; or the error of the pull, with the login that was refused.
    """
    login = find(image)
    try:
        yield _auth(login)
    except LaunchError as error:
        if error.reason != "image_pull" or not _LOGIN_REFUSED.search(error.detail):
            raise
        raise LaunchError(error.reason, _explain_refusal(image, error.detail, login)) from None


def find_push_auth(find: FindLogin, target: str | None) -> dict[str, str] | None:
    """Return the login to push a built image, if it is pushed: an account that may only pull is not used."""
    return _auth(find(target, push=True)) if target is not None else None


def _auth(login: RegistryCredentials | None) -> dict[str, str] | None:
    return None if login is None else {"username": login.username, "password": login.password}


def _explain_refusal(image: str, why: str, login: RegistryCredentials | None) -> str:
    host = registry_host(image)
    if login is None:
        return f"{why} (If {host} requires a login, store one with `gradient-cli registries set {host}`.)"
    # No registry is known to repeat the password; none is trusted not to.
    return f"{why.replace(login.password, '•••')} ({host} did not accept the login of {login.username!r}.)"
