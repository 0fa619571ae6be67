from collections.abc import Iterator

from core.errors import StoreUnavailable
from core.settings import Settings
from gradient_server.checks.finding import Finding, ok, problem

_REQUIRED_PERMISSIONS = [f"storage.objects.{verb}" for verb in ("create", "delete", "get", "list")]
_URL_VARIABLE = "GRADIENT_ARTIFACTS__URL"
_INSTALL_COMMAND = "pip install 'gradient-jobs[tpu]'"


def check(settings: Settings) -> Iterator[Finding]:
    """Check that the bucket, if one is configured, exists and lets this account read, write, list and delete."""
    url = settings.artifacts.url
    if url is None:
        return
    name = url.removeprefix("gs://").partition("/")[0]
    try:
        allowed = _granted_permissions(settings, name)
    except ModuleNotFoundError as error:
        yield problem(
            "artifacts", f"{_URL_VARIABLE} names a bucket, but {error.name} is not installed.", _INSTALL_COMMAND
        )
        return
    except StoreUnavailable as error:
        yield problem(
            "artifacts", f"{url} does not answer. {error.message}", f"Correct {_URL_VARIABLE}, or its credentials."
        )
        return
    missing = [permission for permission in _REQUIRED_PERMISSIONS if permission not in allowed]
    if missing:
        yield problem(
            "artifacts",
            f"This account lacks permissions for artifacts in {url}: {', '.join(missing)}.",
            f"Grant it roles/storage.objectUser on gs://{name}.",
        )
    else:
        yield ok("artifacts", f"{url} answers, and this account can read, write, list and delete there.")


def _granted_permissions(settings: Settings, name: str) -> list[str]:
    # Imported here: Google's libraries are optional.
    from core.storage.gcs.client import open_client, translate_errors

    with translate_errors("querying permissions"):
        allowed: list[str] = open_client(settings.gcs).bucket(name).test_iam_permissions(_REQUIRED_PERMISSIONS)
    return allowed
