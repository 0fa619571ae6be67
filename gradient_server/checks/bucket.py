from collections.abc import Iterator
from secrets import token_hex

from core.errors import StoreUnavailable
from core.settings import Settings
from gradient_server.checks.finding import Finding, ok, problem

_URL_VARIABLE = "GRADIENT_STORE__URL"


def check(settings: Settings) -> Iterator[Finding]:
    """Write, read, list and delete an object in the bucket, if one is configured."""
    url = settings.store.url
    if url is None:
        return
    try:
        replaced = _try_object(settings)
    except StoreUnavailable as error:
        yield problem(
            "bucket",
            f"{url} cannot be used. {error.message}",
            f"Correct {_URL_VARIABLE} or its credentials; the account must be able to read, write, list and delete "
            "there.",
        )
        return
    if replaced:
        yield problem(
            "bucket",
            f"{url} ignores If-None-Match, so a second worker could replace a finished manifest.",
            "Update the bucket's server, or use one that refuses to overwrite.",
        )
    else:
        yield ok("bucket", f"{url} answers; this account can read, write, list and delete there.")


def _try_object(settings: Settings) -> bool:
    """Return whether the bucket replaced an object that it should have kept."""
    # Imported here: only these commands need the library.
    from core.storage.buckets.client import REPLACED, open_bucket, translate_errors

    bucket, prefix = open_bucket(settings)
    name = f"{prefix}doctor/{token_hex(8)}"
    with translate_errors("writing"):
        bucket.put(name, b"1", mode="create")
    try:
        with translate_errors("reading"):
            bucket.get(name)
        with translate_errors("listing"):
            bucket.list_with_delimiter(f"{prefix}doctor/")
        with translate_errors("writing again"):
            bucket.put(name, b"2", mode="create")
    except REPLACED:
        return False
    finally:
        with translate_errors("deleting"):
            bucket.delete(name)
    return True
