"""A TPU job's files in Cloud Storage: created before the TPU, downloaded after it is deleted."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from core.errors import GradientError, StoreUnavailable
from core.settings import Settings
from core.settings.cloud import TpuSettings
from core.storage.artifacts.scan import Skipped
from core.system.untrusted_folders import OPEN_FILE, open_beneath, opened_folder
from worker.attempt.scratch import record_missing
from worker.backends.base import DATASETS, LaunchError, LaunchSpec, Progress
from worker.backends.tpu import times
from worker.backends.tpu.cancellation import pause

if TYPE_CHECKING:
    from worker.backends.tpu.storage.region_bucket import BucketPaths, RegionBucket

logger = logging.getLogger(__name__)

STAGE_VARIABLE = "TPU_STAGE"
"""The job's variable that names a data set to copy to the bucket: `/storage/…`, or a path in the workspace."""

WORKSPACE_FOLDER = "workspace"
"""Folder of a job's prefix with files of its workspace on a TPU VM that the worker reads, and of its scratch folder."""

_THREADS = 4
_MOST_NAMED = 5
_GRANT_POLL_SECONDS = 2.0

OpenBucket = Callable[[str], "RegionBucket"]  # opens the bucket for jobs whose TPU is in this region (`us-central1`)


def make_bucket_opener(settings: Settings) -> OpenBucket | None:
    """Return the function that opens a region's bucket, or None.

    None without TPUs, or where TPUs are simulated and Cloud Storage is not.
    """
    if settings.tpu.backend is None or (settings.tpu.simulator_address is not None and settings.gcs.endpoint is None):
        return None
    # Loaded only where there are TPUs: Google's library takes a second, and need not be installed elsewhere.
    # A bucket stays open: each new client would ask Google for a token of its own.
    return cache(partial(import_module("worker.backends.tpu.storage.region_bucket").open_bucket, settings))


def region_of(zone: str) -> str:
    """Return the region of a zone: `us-central1` for `us-central1-b`."""
    return zone.rpartition("-")[0]


class JobStorage:
    """The bucket folders of an attempt being started, in each region that is searched for a TPU."""

    def __init__(
        self, opened: OpenBucket | None, spec: LaunchSpec, settings: TpuSettings, progress: Progress, *, on_vm: bool
    ) -> None:
        self._open = opened
        self._on_vm = on_vm
        self._grant_seconds = times.GRANT_SECONDS
        self._spec = spec
        self._account = settings.service_account
        self._progress = progress
        self._paths: dict[str, BucketPaths] = {}
        self._regions: set[str] = set()

    def prepare(self, zone: str) -> None:
        """Prepare the job's folders in the bucket of a zone's region, and check that the TPU has access.

        Raises `LaunchError`: they cannot be prepared.
        """
        region = region_of(zone)
        if self._open is None or region in self._paths:
            return
        self._progress("provisioning", f"preparing the bucket in {region}")
        self._regions.add(region)
        with _open_data_set(self._spec) as source:
            self._paths[region] = self._prepare(self._open, region, source)

    def _prepare(self, opened: OpenBucket, region: str, source: int | None) -> "BucketPaths":
        bucket: RegionBucket | None = None
        try:
            bucket = opened(region)
            paths = self._gain_access(bucket, region)
            if self._spec.attempt > 1:
                self._progress("provisioning", f"copying the previous attempt's outputs to the bucket in {region}")
                self._report(bucket.resume(self._spec.job_id, self._spec.artifacts, self._spec.check))
            if source is not None:
                name = self._spec.env[STAGE_VARIABLE].rstrip("/").rpartition("/")[2]
                self._progress("provisioning", f"copying {name} to the bucket in {region}")
                self._report(bucket.stage(self._spec.job_id, name, source, self._spec.check))
        except StoreUnavailable as error:
            raise LaunchError("tpu_api_unavailable", error.message) from error
        except GradientError as error:
            if bucket is not None:
                _remove_quietly(bucket, self._spec.job_id)
            raise LaunchError(getattr(error, "reason", "bucket_refused"), error.message) from error
        return paths

    def _report(self, skipped: tuple[Skipped, ...]) -> None:
        if skipped:
            named = "; ".join(f"{path!r}: {why}" for path, why in skipped[:_MOST_NAMED])
            more = f"; and {len(skipped) - _MOST_NAMED} more" if len(skipped) > _MOST_NAMED else ""
            self._progress("provisioning", f"not copied to the bucket: {named}{more}")

    def _gain_access(self, bucket: "RegionBucket", region: str) -> "BucketPaths":
        """Create the job's folders, and try what uses them; wait for roles that Google is applying.

        The TPU's account uses them, or a VM by tokens, from a URL that the worker signs.
        """
        until = time.monotonic() + self._grant_seconds
        while True:
            try:
                paths = bucket.prepare(self._spec.job_id)
                if self._on_vm:
                    bucket.token_url(self._spec.job_id, self._spec.attempt)
                else:
                    probed = bucket.probe(self._account)
                    logger.info("bucket_probed", extra={"region": region, "found": probed.statement})
            except GradientError as error:
                if not getattr(error, "may_pass", False) or time.monotonic() >= until:
                    raise
                self._progress("provisioning", f"waiting for Google to apply a role, if it was just granted: {error}")
                pause(_GRANT_POLL_SECONDS, self._spec.check)
            else:
                return paths

    def clean_up_if_stopped(self, stage: Callable[[], None]) -> None:
        """Copy the job's files; if a user stops it meanwhile, remove them: there is no device whose end does that."""
        try:
            stage()
            self._spec.check()
        except LaunchError as error:
            if error.reason == "stopped_by_user" and self._open is not None:
                for region in self._regions:
                    _remove_quietly(self._open(region), self._spec.job_id)
            raise

    def folders(self, zone: str) -> dict[str, str]:
        paths = self._paths.get(region_of(zone))
        return {} if paths is None else {"TPU_MODEL_DIR": paths.model_dir, "TPU_DATA_DIR": paths.data_dir}

    def environment(self, zone: str) -> dict[str, str]:
        """Return the folders, with credentials if the job runs on the worker's host and has no account of its own."""
        paths = self._paths.get(region_of(zone))
        return self.folders(zone) | (paths.credentials or {} if paths is not None else {})


class OutputCollector:
    """Downloads jobs' outputs from buckets to their artifacts, while they run and at their end."""

    def __init__(self, opened: OpenBucket | None, settings: Settings) -> None:
        self._open = opened
        self._seconds = settings.worker.sync_seconds
        self._sweep_seconds = times.ORPHAN_GRACE_SECONDS
        self._sweep_at = 0.0
        self._retry_seconds = times.API_RETRY_SECONDS
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="bucket-mirror")
        self._lock = threading.Lock()
        self._downloads: dict[str, tuple[float, Future[None] | None]] = {}
        self._refused_since: dict[str, float] = {}

    def mirror(self, job_id: str, zone: str, artifacts: Path) -> None:
        """Download what is new at intervals, in another thread."""
        if self._open is None:
            return
        current = time.monotonic()
        with self._lock:
            last, running = self._downloads.get(job_id, (current, None))
            if current - last >= self._seconds and (running is None or running.done()):
                last, running = current, self._pool.submit(self._mirror, self._open, job_id, zone, artifacts)
            self._downloads[job_id] = last, running

    def complete(self, job_id: str, zones: list[str], artifacts: Path) -> None:
        """Download all that is missing, then remove the job's prefixes.

        Raises `LaunchError`: a retry may succeed in a moment.

        Args:
            zones: Zones searched for a TPU; if it had one, it was in the last of them.
            artifacts: Folder for its outputs; a missing one is not created again.
        """
        with self._lock:
            _, running = self._downloads.pop(job_id, (0.0, None))
        if self._open is None or not zones:
            return
        if running is not None:
            running.result()
        try:
            _collect_outputs(list(map(self._open, dict.fromkeys(map(region_of, zones)))), job_id, artifacts)
        except (GradientError, OSError) as error:
            since = self._refused_since.setdefault(job_id, time.monotonic())
            transient = isinstance(error, StoreUnavailable | OSError)
            if transient and time.monotonic() - since < self._retry_seconds:
                raise LaunchError("tpu_api_unavailable", f"outputs are still in the bucket: {error}") from error
            logger.exception("outputs_left_in_bucket", extra={"job_id": job_id})
            if artifacts.is_dir():
                why = f"some files could not be downloaded from the bucket: {error}"
                record_missing(artifacts, [Skipped(".", why)])
        self._refused_since.pop(job_id, None)

    def remove_orphans(self, zones: Iterable[str], is_finished: Callable[[str], bool]) -> int:
        """Remove the rest of jobs that are over, for example after a crash between the last download and the removal.

        `is_finished`: see `CloudBackend.remove_orphans`; False for jobs of other services in the bucket.
        """
        if self._open is None or time.monotonic() < self._sweep_at:
            return 0
        self._sweep_at = time.monotonic() + self._sweep_seconds
        count = 0
        for region in dict.fromkeys(map(region_of, zones)):
            try:
                bucket = self._open(region)
                for job_id in filter(is_finished, bucket.jobs()):
                    bucket.remove(job_id)
                    count += 1
            except StoreUnavailable:
                logger.warning("bucket_not_swept", exc_info=True, extra={"region": region})
            except GradientError:
                logger.debug("no_bucket_to_sweep", exc_info=True, extra={"region": region})
        return count

    def _mirror(self, opened: OpenBucket, job_id: str, zone: str, artifacts: Path) -> None:
        try:
            bucket = opened(region_of(zone))
            bucket.mirror(job_id, artifacts.with_name(WORKSPACE_FOLDER), WORKSPACE_FOLDER)
            bucket.mirror(job_id, artifacts)
        except (GradientError, OSError):
            logger.warning("bucket_not_mirrored", exc_info=True, extra={"job_id": job_id})
        except Exception:  # an error in a pool's thread would be lost otherwise
            logger.exception("bucket_mirror_failed", extra={"job_id": job_id})


def _collect_outputs(buckets: "Sequence[RegionBucket]", job_id: str, artifacts: Path) -> None:
    """Complete the artifacts, record what is missing from them, and only then remove the prefixes."""
    if artifacts.is_dir():
        for bucket in buckets:
            bucket.complete(job_id, artifacts.with_name(WORKSPACE_FOLDER), WORKSPACE_FOLDER)
        skipped = [file for bucket in buckets for file in bucket.complete(job_id, artifacts).skipped]
        if skipped:  # a repeat finds the prefixes removed, and must not clear the record
            record_missing(artifacts, skipped)
    for bucket in buckets:
        bucket.remove(job_id)


@contextmanager
def _open_data_set(spec: LaunchSpec) -> Iterator[int | None]:
    """Open the data set that the job wants in the bucket, until it is copied; None: it wants none.

    Other jobs write to the shared storage: the descriptor ensures that what is copied is what was opened beneath it.
    """
    named = spec.env.get(STAGE_VARIABLE)
    if not named:
        yield None
        return
    shared = named.startswith("/storage/")
    data_set = named.startswith(f"{DATASETS}/")
    root = (spec.datasets if data_set else spec.storage if shared else spec.workspace).resolve()
    within = named.removeprefix(f"{DATASETS}/" if data_set else "/storage/")
    *parents, last = [part for part in within.split("/") if part not in {"", "."}] or [".."]
    try:
        if ".." in (*parents, last) or within.startswith("/"):
            raise FileNotFoundError(named)
        with opened_folder(root) as folder:
            parent = open_beneath(folder, parents)
        try:
            source = os.open(last, OPEN_FILE, dir_fd=parent)
        finally:
            os.close(parent)
    except (OSError, ValueError) as error:
        where = "the shared storage" if shared else "the workspace"
        raise LaunchError(
            "data_missing",
            f"{STAGE_VARIABLE}={named}: there is no such file or folder in {where}; links are not followed",
        ) from error
    try:
        yield source
    finally:
        os.close(source)


def _remove_quietly(bucket: "RegionBucket", job_id: str) -> None:
    """Remove the job's folders from a bucket that turned out to be unusable."""
    try:
        bucket.remove(job_id)
    except GradientError:
        logger.info("bucket_not_emptied", exc_info=True)  # it could not be used in the first place
