from collections.abc import Iterator
from contextlib import contextmanager

import google.auth.credentials
from google.api_core.exceptions import GoogleAPIError
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import AuthorizedSession
from google.cloud import storage
from google.cloud.storage.exceptions import DataCorruption, InvalidResponse
from requests import RequestException, Response, Session
from requests.adapters import HTTPAdapter

from core.errors import StoreUnavailable
from core.settings.cloud import GcsSettings
from core.storage.gcs.credentials import find_credentials

_SIMULATED_PROJECT = "simulated"
_MAX_CONNECTIONS = 64
FAILURES = (GoogleAPIError, GoogleAuthError, InvalidResponse, DataCorruption, RequestException)
"""Exceptions of calls that failed."""


@contextmanager
def translate_errors(what: str) -> Iterator[None]:
    """Convert errors of Cloud Storage into StoreUnavailable.

    Raises `StoreUnavailable`: with what was tried, and why it failed.
    """
    try:
        yield
    except FAILURES as error:
        raise StoreUnavailable(f"Cloud Storage: {what} failed: {error}") from error


def open_session(settings: GcsSettings) -> Session:
    """Open a session for direct requests to Google (tokens); a simulator, if there is one, stands in for Google."""
    session = Session()
    if settings.endpoint is not None:
        session.proxies = {"https": settings.endpoint}
        session.verify = str(settings.ca) if settings.ca is not None else True
        session.trust_env = False
    return session


def open_credentials(settings: GcsSettings) -> tuple[google.auth.credentials.Credentials, str | None]:
    """Return the service's own credentials and their project: those of the environment, or a simulator's."""
    if settings.endpoint is not None:
        simulated = _Simulated()  # type: ignore[no-untyped-call]  # google-auth leaves constructors without types
        return simulated, _SIMULATED_PROJECT
    with translate_errors("looking for credentials"):
        return find_credentials()


def open_client(
    settings: GcsSettings,
    credentials: google.auth.credentials.Credentials | None = None,
    project: str | None = None,
) -> storage.Client:
    """Open a client that many threads can use."""
    if credentials is None:
        credentials, own_project = open_credentials(settings)
        project = project or own_project
    session = AuthorizedSession(
        credentials, auth_request=google.auth.transport.requests.Request(open_session(settings))
    )
    session.trust_env = settings.endpoint is None
    session.hooks["response"].append(_read_error)
    for scheme in ("https://", "http://"):
        session.mount(scheme, HTTPAdapter(pool_maxsize=_MAX_CONNECTIONS))
    options = {} if settings.endpoint is None else {"api_endpoint": settings.endpoint}
    with translate_errors("opening"):
        return storage.Client(project=project, credentials=credentials, client_options=options, _http=session)


def _read_error(response: Response, **_options: object) -> None:
    """Read the body of an error: Google's download raises without, and its connection would wait for the collector."""
    if not response.ok:
        _ = response.content


class _Simulated(google.auth.credentials.Signing, google.auth.credentials.Credentials):
    """Credentials that a simulator accepts as its operator's."""

    signer = None
    signer_email = "operator@simulated.iam.gserviceaccount.com"

    def sign_bytes(self, message: bytes) -> bytes:
        """Return a dummy signature: the simulator checks only the dates of a signed URL."""
        return message[:1]

    def refresh(self, request: object) -> None:
        del request
        self.token = _SIMULATED_PROJECT
