from collections.abc import Iterator
from contextlib import contextmanager

from google.api_core.exceptions import Forbidden, NotFound, Unauthorized
from google.auth.exceptions import GoogleAuthError

from core.errors import GradientError
from core.storage.gcs.client import translate_errors


class BucketRefused(GradientError):
    """The bucket cannot be used as it is; trying again does not help, unless it `may_pass`.

    `reason`: `bucket_missing`, `bucket_refused` or `bucket_region`.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail

    @property
    def may_pass(self) -> bool:
        """It is the lack of a permission, which Google may still be applying."""
        return isinstance(self.__cause__, Forbidden | Unauthorized | GoogleAuthError)


@contextmanager
def translate_bucket_errors(bucket: str, what: str) -> Iterator[None]:
    """Convert Google's errors into permanent and temporary ones."""
    with translate_errors(f"{what} in gs://{bucket}"):
        try:
            yield
        except NotFound as error:
            raise BucketRefused("bucket_missing", f"gs://{bucket} does not exist ({what}).") from error
        except (Forbidden, Unauthorized) as error:
            raise BucketRefused("bucket_refused", f"gs://{bucket}: {what} is not allowed: {error.message}") from error
