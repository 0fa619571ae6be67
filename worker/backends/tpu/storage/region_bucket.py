"""The bucket of TPU jobs in one region, with `jobs/<id>/model` and `jobs/<id>/data` for each job.

The settings name it, or it is created when a job first needs it.
"""

import hashlib
import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from google.api_core.exceptions import BadRequest, Conflict, Forbidden, NotFound
from google.auth.credentials import Credentials
from google.cloud import storage

from core.errors import StoreUnavailable
from core.ids import checked_job_id
from core.settings import Settings
from core.storage.artifacts.scan import Skipped
from core.storage.gcs.client import open_client, open_credentials, open_session
from core.storage.gcs.signed_urls import signed_url
from core.storage.gcs.transfer import PARALLEL_FILES, remove_all
from core.system.untrusted_folders import opened_folder, remove_tree
from worker.backends.base import no_check
from worker.backends.tpu import times
from worker.backends.tpu.cancellation import Check
from worker.backends.tpu.storage.access import (
    JOBS,
    ProbeResult,
    Token,
    create_limited_token,
    find_lacking_permissions,
    grant_access,
    impersonate,
    probe_bucket,
)
from worker.backends.tpu.storage.data_set_upload import upload_tree
from worker.backends.tpu.storage.download import DownloadResult, OutputDownloader
from worker.backends.tpu.storage.errors import BucketRefused, translate_bucket_errors
from worker.backends.tpu.storage.mailbox import Mailbox

_CONTINENTS = {"US": "US-", "EU": "EUROPE-", "ASIA": "ASIA-"}
"""Multi-region locations, and the prefixes of their regions' names."""
_MAX_PASSES = 3
_KEEP_DAYS = 30  # what is left of a lost job can be fetched by hand for a month
_BUCKET_NAME = r"[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]"
_TOKEN_URL_SECONDS = 7 * 86_400.0  # the longest validity that Google allows for a signed URL
_SIGNING = "signing a URL, for which the worker's account needs roles/iam.serviceAccountTokenCreator on itself,"
_LABELS = {"gradient-jobs": "bucket"}


@dataclass(frozen=True)
class BucketPaths:
    """Paths of a job in the bucket.

    `credentials`: environment variables that give the job's container access to both for a while; None if its machine
    has an account of its own.
    """

    model_dir: str  # outputs, `gs://…/jobs/<id>/model`
    data_dir: str
    credentials: dict[str, str] | None


def open_bucket(settings: Settings, region: str) -> "RegionBucket":
    """Return the bucket for TPUs of a region, such as `us-central1`; makes no request to Google.

    Raises `StoreUnavailable`: there are no credentials.
    """
    credentials, own_project = open_credentials(settings.gcs)
    project = settings.tpu.project or own_project
    client = open_client(settings.gcs, credentials, project)
    name = settings.bucket.name or f"{project}-gradient-{region}"
    return RegionBucket(settings, client.bucket(name), region, credentials)


class RegionBucket:
    """The bucket of TPU jobs in one region. Its methods raise BucketRefused and StoreUnavailable.

    The second: Google does not answer, and a repeat resumes. What fetches outputs raises OSError, too.
    """

    def __init__(self, settings: Settings, bucket: storage.Bucket, region: str, credentials: Credentials) -> None:
        self._settings = settings
        self._bucket = bucket
        self._region = region
        self._credentials = credentials
        self._parallel = PARALLEL_FILES

    @property
    def name(self) -> str:
        name: str = self._bucket.name
        return name

    def prepare(self, job_id: str) -> BucketPaths:
        """Create the bucket and the job's folders in it, if missing; a repeat makes a fresh token."""
        self.ensure()
        prefix = self._prefix(job_id)
        # A program that creates folders looks for the parents first; these objects end that search within the prefix.
        for folder in (prefix, f"{prefix}model/", f"{prefix}data/"):
            with translate_bucket_errors(self.name, "writing"):
                self._bucket.blob(folder).upload_from_string(b"")
        token = self._token(prefix)
        return BucketPaths(
            model_dir=f"gs://{self.name}/{prefix}model",
            data_dir=f"gs://{self.name}/{prefix}data",
            credentials=self._variables(token.text),
        )

    def token(self, job_id: str) -> Token:
        """Return a fresh token for the job's prefix."""
        return self._token(self._prefix(job_id))

    def _token(self, prefix: str) -> Token:
        token = create_limited_token(self._credentials, open_session(self._settings.gcs), self.name, prefix)
        return Token(token.text, min(token.expires_at, time.time() + times.TOKEN_SECONDS))

    def _variables(self, token: str) -> dict[str, str]:
        """Build the variables that pass a token: TensorFlow reads the first, Google's tools the second."""
        variables = {
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": token,
            "CLOUDSDK_AUTH_ACCESS_TOKEN": token,
            "GRADIENT_BUCKET_TOKEN": token,
        }
        endpoint, authority = self._settings.gcs.endpoint, self._settings.gcs.ca
        if endpoint is not None:
            # Not in lower case: gRPC would read that too, and connect to the TPU through the proxy.
            variables |= {"HTTPS_PROXY": endpoint, "STORAGE_EMULATOR_HOST": endpoint}
            variables |= {} if authority is None else {"CURL_CA_BUNDLE": str(authority)}
        return variables

    def ensure(self) -> None:
        """Create the bucket if missing, and check its region and access settings."""
        given = self._settings.bucket.name is not None
        with translate_bucket_errors(self.name, "looking at it"):
            try:
                self._bucket.reload()
            except NotFound:
                if given:
                    raise BucketRefused(
                        "bucket_missing",
                        f"gs://{self.name} does not exist. Create it in {self._region}, or remove "
                        "GRADIENT_BUCKET__NAME from the settings to have a bucket created.",
                    ) from None
                self._create()
        self._check_usable()

    def inspect(self, service_account: str | None, *, signs: bool = False) -> ProbeResult:
        """Check that the worker may use the bucket, and act as the TPU's account; changes nothing.

        `signs`: it also has to sign the URLs of tokens, for jobs on TPU VMs.
        """
        if re.fullmatch(_BUCKET_NAME, self.name) is None:
            raise BucketRefused(
                "bucket_refused", f"{self.name!r} is not a valid bucket name. Set one with GRADIENT_BUCKET__NAME."
            )
        with translate_bucket_errors(self.name, "looking at it"):
            try:
                self._bucket.reload()
            except NotFound:
                if self._settings.bucket.name is not None:
                    raise
                return ProbeResult(
                    proved=False, statement=f"gs://{self.name} does not exist yet: the first job creates it."
                )
        self._check_usable()
        if lacking := find_lacking_permissions(self._bucket):
            raise BucketRefused("bucket_refused", f"The worker's account lacks {lacking} on gs://{self.name}.")
        if signs:
            self.token_url("j0", 1)
        usable = f"The worker may use gs://{self.name}{' and sign its URLs' if signs else ''}"
        if service_account is None:
            return ProbeResult(proved=False, statement=f"{usable}; the TPU's service account is not known.")
        if impersonate(self._credentials, open_session(self._settings.gcs), service_account) is None:
            return ProbeResult(proved=False, statement=f"{usable}, but may not act as {service_account}.")
        return ProbeResult(proved=True, statement=f"{usable} and act as {service_account}.")

    def _check_usable(self) -> None:
        self._check_region()
        if not self._bucket.iam_configuration.uniform_bucket_level_access_enabled:
            raise BucketRefused(
                "bucket_refused",
                f"gs://{self.name} allows access per object, which cannot be limited to a job's prefix. Turn on "
                f"uniform bucket-level access: gcloud storage buckets update gs://{self.name} "
                "--uniform-bucket-level-access",
            )

    def _create(self) -> None:
        bucket = self._bucket
        bucket.iam_configuration.uniform_bucket_level_access_enabled = True
        bucket.iam_configuration.public_access_prevention = "enforced"
        bucket.labels = _LABELS
        # Google's default keeps, and bills, each overwritten or deleted object for a week more.
        bucket.soft_delete_policy.retention_duration_seconds = 0
        # Objects that a crash leaves behind cost money: let the bucket delete them, even if no record of them is left.
        bucket.add_lifecycle_delete_rule(age=_KEEP_DAYS, matches_prefix=[JOBS])
        try:
            bucket.create(location=self._region)
        except Conflict:
            bucket.reload()  # another worker created it first; a bucket of another owner is refused here
        except BadRequest as error:
            raise BucketRefused("bucket_refused", f"gs://{self.name} cannot be created: {error.message}") from error
        except Forbidden as error:
            raise BucketRefused(
                "bucket_refused",
                f"The worker's account may not create gs://{self.name}: {error.message} Grant it "
                "roles/storage.admin, or name an existing bucket in GRADIENT_BUCKET__NAME.",
            ) from error

    def _check_region(self) -> None:
        location, region = str(self._bucket.location).upper(), self._region.upper()
        within = [location.upper() for location in self._bucket.data_locations or ()]
        if location == region or region in within or region.startswith(_CONTINENTS.get(location, "-")):
            return
        raise BucketRefused(
            "bucket_region",
            f"gs://{self.name} is in {location.lower()}, the TPU in {self._region}: transfers between them would be "
            f"slow and billed. Name a bucket in {self._region}, or use TPUs in {location.lower()}.",
        )

    def probe(self, service_account: str | None) -> ProbeResult:
        """Grant the TPU's account access, then write, read and remove an object as that account.

        `service_account`: the account's e-mail address; None: not known. Returns the result; if the worker cannot act
        as the account, the reason that nothing could be tried.
        """
        if service_account is None:
            return ProbeResult(
                proved=False, statement="The TPU's service account is not known, so its access was not tested."
            )
        grant_access(self._bucket, service_account)
        gcs = self._settings.gcs
        credentials = impersonate(self._credentials, open_session(gcs), service_account)
        if credentials is None:
            return ProbeResult(
                proved=False,
                statement=f"{service_account} was granted access to gs://{self.name}, but this could not be tested: "
                "the worker may not act as that account (roles/iam.serviceAccountTokenCreator; not possible for "
                "Google's accounts).",
            )
        client = open_client(gcs, credentials)
        return probe_bucket(client.bucket(self.name), service_account)

    def stage(self, job_id: str, name: str, source: int, check: Check = no_check) -> tuple[Skipped, ...]:
        """Copy a data set, an open file or folder, to the job's data folder, and return what is left out."""
        return self._upload(f"{self._prefix(job_id)}data/", name, source, check)

    def resume(self, job_id: str, artifacts: Path, check: Check = no_check) -> tuple[Skipped, ...]:
        """Copy an earlier attempt's artifacts to the job's model folder, and return what is left out.

        The job's prefix was removed when that attempt ended.
        """
        with opened_folder(artifacts) as opened:
            return self._upload(f"{self._prefix(job_id)}model/", artifacts.name, opened, check)

    def _upload(self, prefix: str, name: str, source: int, check: Check) -> tuple[Skipped, ...]:
        return upload_tree(self._bucket, prefix, name, source, parallel=self._parallel, check=check)

    def mirror(self, job_id: str, into: Path, folder: str = "model") -> DownloadResult:
        """Download what is new in the job's model folder, or another one; inputs are not downloaded."""
        prefix, cache = f"{self._prefix(job_id)}{folder}/", self._cache_folder(job_id) / _digest(into)
        return OutputDownloader(self._bucket, prefix, into, cache, self._parallel).run()

    def complete(self, job_id: str, into: Path, folder: str = "model") -> DownloadResult:
        """Mirror once nothing writes any more; repeats until no object changes."""
        for _ in range(_MAX_PASSES):
            result = self.mirror(job_id, into, folder)
            if not result.changing:
                return result
        raise StoreUnavailable(
            f"{result.changing} objects of {job_id} in gs://{self.name} keep changing after the job's end."
        )

    def remove(self, job_id: str) -> None:
        """Remove everything of a job; a job without objects is not an error."""
        with suppress(OSError):
            remove_tree(self._cache_folder(job_id))
        try:
            with translate_bucket_errors(self.name, "listing"):
                blobs = list(self._bucket.list_blobs(prefix=self._prefix(job_id)))
        except BucketRefused as error:
            if error.reason == "bucket_missing":
                return
            raise
        remove_all(blobs, self._parallel)

    def mailbox(self, job_id: str, attempt: int) -> Mailbox:
        """Return the objects by which the worker and the attempt's machine exchange messages."""
        return Mailbox(self._bucket, f"{self._prefix(job_id)}vm/{attempt}/", self._parallel)

    def token_url(self, job_id: str, attempt: int) -> str:
        """Sign the URL at which the attempt's TPU VM finds its token; it is valid for a week."""
        url = None
        with translate_bucket_errors(self.name, _SIGNING):
            url = signed_url(self._bucket.blob(self._token_name(job_id, attempt)), _TOKEN_URL_SECONDS)
        if url is None:
            raise BucketRefused("bucket_refused", f"gs://{self.name}: {_SIGNING} requires a service account.")
        return url

    def renew_token(self, job_id: str, attempt: int) -> None:
        """Write a fresh token, limited to the job's prefix, where the attempt's TPU VM finds it."""
        token = self._token(self._prefix(job_id))
        content = json.dumps({"access_token": token.text, "expires_at": token.expires_at})
        with translate_bucket_errors(self.name, "writing a token"):
            self._bucket.blob(self._token_name(job_id, attempt)).upload_from_string(content, checksum="crc32c")

    def _token_name(self, job_id: str, attempt: int) -> str:
        return f"{self._prefix(job_id)}vm/{attempt}/token"

    def jobs(self) -> list[str]:
        """List the ids of the jobs that have objects in the bucket."""
        with translate_bucket_errors(self.name, "listing"):
            listing = self._bucket.list_blobs(prefix=JOBS, delimiter="/")
            for _ in listing.pages:
                pass  # the folders are complete once every page was read
        return sorted(folder.removeprefix(JOBS).rstrip("/") for folder in listing.prefixes)

    def _cache_folder(self, job_id: str) -> Path:
        return self._settings.root / "cache" / "buckets" / self.name / job_id

    def _prefix(self, job_id: str) -> str:
        return f"{JOBS}{checked_job_id(job_id)}/"


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
