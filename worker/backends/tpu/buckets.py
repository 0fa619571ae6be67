"""The part of a TPU job that lies in Cloud Storage: its place is made before anything bills, and brought home after."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from core.artifact_paths import OPEN_FILE, open_beneath, opened_folder
from core.artifact_survey import Skipped
from core.errors import GradientError, StoreUnavailable
from core.settings import Settings
from worker.backends.base import DATASETS, BackendError, LaunchSpec, Progress
from worker.lost import note_lost

logger = logging.getLogger(__name__)

STAGE = "TPU_STAGE"
"""The job's variable that names a data set to copy to the bucket: `/storage/…`, or a path in the workspace."""

_THREADS = 4


class Paths(Protocol):
    """Where a job's files are in the bucket."""

    @property
    def model_dir(self) -> str:
        """`gs://…` that the job writes its model to."""

    @property
    def data_dir(self) -> str:
        """`gs://…` that the job's data is at."""

    @property
    def credentials(self) -> Mapping[str, str] | None:
        """Variables of the job's environment that let it in, for this prefix and a short time; None: it needs none."""


class Brought(Protocol):
    """What came of bringing a job's outputs home."""

    @property
    def skipped(self) -> Sequence[Skipped]:
        """What could not be brought, and why."""


class Relay(Protocol):
    """Where a worker and the machine that an attempt runs on tell each other things; raises as JobBucket does."""

    @property
    def bucket(self) -> str:
        """The bucket's name."""

    @property
    def prefix(self) -> str:
        """What the names of its objects begin with."""

    def put(self, name: str, content: bytes | Path) -> None:
        """Write an object, whatever is there."""

    def get(self, name: str, most: int = 1 << 16) -> bytes | None:
        """An object's content, no more than so many bytes of it; None: there is no such object."""

    def names(self, folder: str, start: str) -> list[str]:
        """Names in a folder, from this one on, in order."""

    def clear(self) -> None:
        """Remove all of it."""


class JobBucket(Protocol):
    """The bucket of a region's jobs.

    What will not change by itself is a GradientError with a `reason` out of REASONS and a `detail`; StoreUnavailable
    may be over in a moment.
    """

    def prepare(self, job_id: str) -> Paths:
        """Have the bucket, and the job's prefix in it."""

    def probe(self, service_account: str | None) -> object:
        """Make sure that the TPU's account can write, read and delete there; what was proved is in `statement`."""

    def stage(self, job_id: str, name: str, source: int) -> object:
        """Copy a data set, a file or folder that is open, into the job's data folder."""

    def resume(self, job_id: str, artifacts: Path) -> object:
        """Copy what an earlier attempt left into the job's model folder."""

    def mirror(self, job_id: str, into: Path) -> object:
        """Copy what is new in the model folder."""

    def complete(self, job_id: str, into: Path) -> Brought:
        """Copy all that is missing of the model folder."""

    def relay(self, job_id: str, attempt: int) -> Relay:
        """Where a worker and the machine that this attempt runs on meet."""

    def token_url(self, job_id: str, attempt: int) -> str:
        """Sign the address at which the attempt's TPU VM finds its token."""

    def renew_token(self, job_id: str, attempt: int) -> None:
        """Write a fresh token of the job's prefix there."""

    def remove(self, job_id: str) -> None:
        """Delete the job's prefix, if that is the policy."""

    def jobs(self) -> list[str]:
        """Ids of the jobs that something in the bucket is of, this service's or another one's."""


OpenBucket = Callable[[str], JobBucket]
"""The bucket for jobs whose TPU is in this region (`us-central1`)."""


def region_of(zone: str) -> str:
    """The region of a zone: `us-central1` of `us-central1-b`."""
    return zone.rpartition("-")[0]


class Places:
    """The places in buckets of one attempt that is being started, one a region that a TPU is sought in."""

    def __init__(self, opened: OpenBucket | None, spec: LaunchSpec, settings: Settings, progress: Progress) -> None:
        self._open = opened
        self._spec = spec
        # A job on its VM brings a token of its own: the VM's account may nothing in the bucket.
        self._account = None if settings.tpu.on_vm(spec.machine_type) else settings.tpu.service_account
        self._progress = progress
        self._paths: dict[str, Paths] = {}

    def have(self, zone: str) -> None:
        """Have the job's place in the bucket of a zone's region, and make sure that the TPU will be let in.

        Raises:
            BackendError: That cannot be.
        """
        region = region_of(zone)
        if self._open is None or region in self._paths:
            return
        self._progress("provisioning", f"preparing the bucket in {region}")
        with _data_set(self._spec) as source:
            self._paths[region] = self._prepared(self._open, region, source)

    def _prepared(self, opened: OpenBucket, region: str, source: int | None) -> Paths:
        bucket: JobBucket | None = None
        try:
            bucket = opened(region)
            paths = bucket.prepare(self._spec.job_id)
            proved = bucket.probe(self._account)
            logger.info("bucket_probed", extra={"region": region, "found": getattr(proved, "statement", None)})
            if self._spec.attempt > 1:
                self._progress("provisioning", f"copying what the attempt before left to the bucket in {region}")
                bucket.resume(self._spec.job_id, self._spec.artifacts)
            if source is not None:
                name = self._spec.env[STAGE].rstrip("/").rpartition("/")[2]
                self._progress("provisioning", f"copying {name} to the bucket in {region}")
                bucket.stage(self._spec.job_id, name, source)
        except StoreUnavailable as error:
            raise BackendError("tpu_api_away", error.message) from error
        except GradientError as error:
            if bucket is not None:
                _removed(bucket, self._spec.job_id)
            raise BackendError(getattr(error, "reason", "bucket_refused"), error.message) from error
        return paths

    def folders(self, zone: str) -> dict[str, str]:
        """Where the job's places are, its TPU being in this zone."""
        paths = self._paths.get(region_of(zone))
        return {} if paths is None else {"TPU_MODEL_DIR": paths.model_dir, "TPU_DATA_DIR": paths.data_dir}

    def environment(self, zone: str) -> dict[str, str]:
        """The same, and what lets in a job that runs beside its TPU and has no account of its own."""
        paths = self._paths.get(region_of(zone))
        return self.folders(zone) | dict(paths.credentials or {} if paths is not None else {})


class Homecoming:
    """Brings what jobs leave in buckets to their artifacts, while they run and at their end."""

    def __init__(self, opened: OpenBucket | None, settings: Settings) -> None:
        self._open = opened
        self._seconds = settings.worker.sync_seconds
        self._keeps = settings.bucket.keep
        self._sweep_seconds = settings.tpu.stray_seconds
        self._sweep_at = 0.0
        self._patience = settings.tpu.patience_seconds
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="bucket-mirror")
        self._lock = threading.Lock()
        self._under_way: dict[str, tuple[float, Future[None] | None]] = {}
        self._refused_since: dict[str, float] = {}

    def mirror(self, job_id: str, zone: str, artifacts: Path) -> None:
        """Have what is new copied, now and then, apart from who asks."""
        if self._open is None:
            return
        current = time.monotonic()
        with self._lock:
            last, running = self._under_way.get(job_id, (current, None))
            if current - last >= self._seconds and (running is None or running.done()):
                last, running = current, self._pool.submit(self._mirror, self._open, job_id, zone, artifacts)
            self._under_way[job_id] = last, running

    def complete(self, job_id: str, zones: list[str], artifacts: Path) -> None:
        """Copy all that is missing, then remove the job's prefixes.

        Args:
            job_id: Whose.
            zones: Where a TPU was sought for it; it had one in the last of them, if at all.
            artifacts: Folder for what it leaves; one that is gone is not made again.

        Raises:
            BackendError: It may be done in a moment.
        """
        with self._lock:
            _, running = self._under_way.pop(job_id, (0.0, None))
        if self._open is None or not zones:
            return
        if running is not None:
            running.result()
        try:
            _bring(list(map(self._open, dict.fromkeys(map(region_of, zones)))), job_id, artifacts)
        except (GradientError, OSError) as error:
            since = self._refused_since.setdefault(job_id, time.monotonic())
            passing = isinstance(error, StoreUnavailable | OSError)
            if passing and time.monotonic() - since < self._patience:
                raise BackendError("tpu_api_away", f"outputs are still in the bucket: {error}") from error
            logger.exception("outputs_left_in_bucket", extra={"job_id": job_id})
            if artifacts.is_dir():
                note_lost(artifacts, "", [Skipped(".", f"not all of it could be brought from the bucket: {error}")])
        self._refused_since.pop(job_id, None)

    def remove_strays(self, zones: Iterable[str], over: Callable[[str], bool]) -> int:
        """Remove what is left of jobs that are over: a crash between the last copy and the removal, say.

        Args:
            zones: Where TPUs are sought.
            over: Whether a job of this service's has ended; others' jobs, which may share the bucket, are not over.
        """
        if self._open is None or self._keeps or time.monotonic() < self._sweep_at:
            return 0
        self._sweep_at = time.monotonic() + self._sweep_seconds
        count = 0
        for region in dict.fromkeys(map(region_of, zones)):
            try:
                bucket = self._open(region)
                for job_id in filter(over, bucket.jobs()):
                    bucket.remove(job_id)
                    count += 1
            except StoreUnavailable:
                logger.warning("bucket_not_swept", exc_info=True, extra={"region": region})
            except GradientError:
                logger.debug("no_bucket_to_sweep", exc_info=True, extra={"region": region})
        return count

    def _mirror(self, opened: OpenBucket, job_id: str, zone: str, artifacts: Path) -> None:
        try:
            opened(region_of(zone)).mirror(job_id, artifacts)
        except (GradientError, OSError):
            logger.warning("bucket_not_mirrored", exc_info=True, extra={"job_id": job_id})
        except Exception:  # in a pool's thread nobody else would hear of it
            logger.exception("bucket_mirror_failed", extra={"job_id": job_id})


def _bring(buckets: Sequence[JobBucket], job_id: str, artifacts: Path) -> None:
    """Complete the artifacts, leave word of what could not be among them, and only then remove the prefixes."""
    if artifacts.is_dir():
        skipped = [one for bucket in buckets for one in bucket.complete(job_id, artifacts).skipped]
        if skipped:  # a repeat that finds the prefixes removed must not take the word back
            note_lost(artifacts, "", skipped)
    for bucket in buckets:
        bucket.remove(job_id)


@contextmanager
def _data_set(spec: LaunchSpec) -> Iterator[int | None]:
    """The data set that the job wants in the bucket, open until it is copied; None: it wants none.

    Other jobs write in the shared storage: what is copied seconds later has to be what was opened beneath it.

    Raises:
        BackendError: It is not there, outside of what is the job's, or behind a link.
    """
    named = spec.env.get(STAGE)
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
        raise BackendError(
            "data_missing", f"{STAGE}={named}: there is no such file or folder in {where}; links are not followed"
        ) from error
    try:
        yield source
    finally:
        os.close(source)


def _removed(bucket: JobBucket, job_id: str) -> None:
    """Leave nothing of a place that turned out to be of no use."""
    try:
        bucket.remove(job_id)
    except GradientError:
        logger.info("bucket_not_emptied", exc_info=True)  # it could not be used in the first place
