"""Checks of signed URLs, as far as a simulator can: completeness and expiry."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gradient_server.simulator.gcs.objects import StorageError

_MAX_SECONDS = 7 * 24 * 3600


def check_expiry(query: Mapping[str, str]) -> None:
    """Check the dates of a signed URL like Google. The signature itself is not verified."""
    try:
        signed_at = datetime.strptime(query["X-Goog-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        seconds = int(query["X-Goog-Expires"])
    except (KeyError, ValueError) as error:
        raise StorageError(400, "invalid", f"The signed URL is not whole: {error}") from error
    if not 0 < seconds <= _MAX_SECONDS:
        raise StorageError(400, "invalid", "X-Goog-Expires must lie between 1 and 604800 seconds.")
    if datetime.now(UTC) > signed_at + timedelta(seconds=seconds):
        raise StorageError(403, "expired", "The signed URL has expired.")
