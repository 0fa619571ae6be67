"""The check of a job's image at its registry, before the job is submitted."""

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import urljoin, urlsplit

import urllib3
from sqlalchemy.orm import Session

from core.catalogue.backends import runs_containers
from core.catalogue.images import is_image_id
from core.catalogue.registry_hosts import DOCKER_HUB, RegistryCredentials, registry_host
from core.catalogue.registry_images import MAX_ANSWER, Answer, ImageRefused, Registry, is_local
from core.db.models.jobs import Job
from core.errors import GradientError
from core.formatting import format_bytes
from core.security import credentials
from core.security.encryption import Vault
from core.settings import Settings
from core.system.public_requests import open_public
from service.schemas.jobs import ImageCheck, SubmitJob
from service.submission.stages import ValidatedJob

_SECONDS = 5.0  # for all requests to a registry
_TIMEOUT = urllib3.Timeout(connect=2.0, read=3.0)
_MAX_REDIRECTS = 3
_REQUESTING = threading.BoundedSemaphore(4)  # registries that take their time hold no more threads
_REMEDIES = {
    "missing": "Check its name and tag.",
    "login": "Check its name, or store a login with `gradient-cli registries set`.",
    "unknown": "If there is none, the job ends with image_pull.",
}


def plan_check(
    session: Session, settings: Settings, valid: ValidatedJob, job: Job, request: SubmitJob
) -> Callable[[], ImageCheck | None]:
    """Return a function that looks a job's image up with the login of a worker, to call outside of the session."""
    image, is_pulled = valid.image, valid.spec.image_pull_policy != "Never"
    if image is None or is_image_id(image) or not (is_pulled and runs_containers(job.backend, settings, image)):
        return lambda: None
    if request.registry_username is None:
        login = credentials.registry_login_for(session, Vault(settings), job, image)
    else:
        sent = request.registry_username, request.registry_password or ""
        login = RegistryCredentials(registry_host(image), *sent)
    return partial(_check, settings, image, login)


def _check(settings: Settings, image: str, login: RegistryCredentials | None) -> ImageCheck:
    checks: list[ImageCheck] = []

    def check() -> None:
        if _REQUESTING.acquire(timeout=_SECONDS):
            try:
                checks.append(_query(settings, image, login))
            finally:
                _REQUESTING.release()

    thread = threading.Thread(target=check, daemon=True)
    thread.start()
    thread.join(_SECONDS)
    return checks[0] if checks else _refusal(image, "unknown", f"no answer in {_SECONDS:g} seconds.", login)


def _query(settings: Settings, image: str, login: RegistryCredentials | None) -> ImageCheck:
    auth = None if login is None else {"username": login.username, "password": login.password}
    registry = Registry(image, auth, partial(_read, settings))
    try:
        digest = registry.find().name.partition("@")[2]
    except (ImageRefused, GradientError) as error:  # an address that is not public
        return _refusal(image, getattr(error, "state", "unknown"), str(error), login)
    # Docker Hub counts it as a pull.
    size = None if registry.host == DOCKER_HUB else registry.size(digest)
    what = f"{digest[:19]}…" + (f", {format_bytes(size)}" if size is not None else "")
    return ImageCheck(state="found", message=f"{registry.host} has it: {what}.", digest=digest, bytes=size)


def _refusal(image: str, state: Any, why: str, login: RegistryCredentials | None) -> ImageCheck:  # noqa: ANN401 - one of the states
    host, sent = registry_host(image), f"for the login of {login.username}" if login else "without a login"
    messages = {
        "missing": f"{host} has no image {image}.",
        "login": f"{host} does not give {image} {sent}; some registries say so of images that do not exist, too.",
        "unknown": f"Whether there is an image {image} is not known: {why}",
    }
    return ImageCheck(state=state, message=messages[state], remedy=_REMEDIES[state])


def _read(settings: Settings, method: str, url: str, headers: Mapping[str, str]) -> Answer:
    how: dict[str, Any] = {"allowed": settings.egress.allowed, "setting": "GRADIENT_EGRESS__ALLOWED"}
    for _ in range(_MAX_REDIRECTS + 1):
        parts = urlsplit(url)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_local(parts.netloc)):
            raise OSError("it leads to an address without encryption")
        try:
            with open_public(method, url, headers, timeout=_TIMEOUT, **how) as answer:
                target = answer.headers.get("Location") if answer.status in answer.REDIRECT_STATUSES else None
                if target is None:
                    return Answer(answer.status, answer.headers, answer.read(MAX_ANSWER))
        except urllib3.exceptions.HTTPError as error:
            raise OSError("there is no connection to it, or no answer in time") from error
        url, headers = urljoin(url, target), {"Accept": headers.get("Accept", "*/*")}
    raise OSError("it redirects too often")
