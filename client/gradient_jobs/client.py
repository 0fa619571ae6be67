"""The client of a server, and the jobs that it returns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gradient_cli import config, follow
from gradient_cli.api.client import Api
from gradient_cli.api.retries import retry_until_connected
from gradient_cli.api.transport import Transport
from gradient_cli.errors import ClientError
from gradient_cli.workspace.transfer import download
from gradient_cli.workspace.transfer.public_names import to_local_name
from gradient_jobs import metrics
from gradient_jobs.notifications import Notifications
from gradient_jobs.options import JobFilters, JobOptions, build_filters, build_spec
from gradient_jobs.records import Artifact, JobRecord, LogLine, Prediction
from gradient_jobs.submission import submit
from gradient_jobs.sweeps import Sweeps

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self, Unpack


JobList = list["Job"]
ArtifactList = list[Artifact]
PathList = list[Path]


class Client:
    """A Gradient Jobs server.

    Args:
        url: Its address. The defaults for address and key are those of `gradient-cli`: GRADIENT_URL and
            GRADIENT_API_KEY, then the values saved by `gradient-cli login`, then a server on this machine.
        api_key: The API key.

    Raises:
        ClientError: No server is configured, or its address is invalid.

    Every method raises ServerError when the server answers with an error, and ConnectionFailed when it cannot be
    reached. One client must not be used by several threads at once.

    Attributes:
        jobs: The server's jobs.
        sweeps: The server's sweeps.
        notifications: The receivers that are told when jobs end.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        settings = config.resolve(url, api_key)
        connect = partial(_connect, settings)
        self._api = connect()
        self.jobs = Jobs(self._api)
        self.sweeps = Sweeps(self._api, connect)
        self.notifications = Notifications(self._api)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._api.url

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        self._api.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _connect(settings: config.Settings) -> Api:
    return Api(Transport(settings.url, settings.key))


class Jobs:
    """The jobs of a server."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def create(self, **options: Unpack[JobOptions]) -> Job:
        """Submit a job with the options of `gradient-cli jobs create`, and return it without waiting for it.

        As with that command, missing options come from `.gradient.toml`, and the workspace is the folder of that file,
        otherwise the current folder. It is uploaded only if the server lacks it.

        Raises:
            UsageError: An option is unknown or has the wrong form, or a required one is missing.
        """
        return Job(self._api, submit(self._api, *build_spec(options)))

    def get(self, job_id: str) -> Job:
        return Job(self._api, self._api.job(job_id))

    def list(self, *, limit: int | None = 50, **filters: Unpack[JobFilters]) -> JobList:
        """Return jobs, newest first.

        Args:
            limit: The largest number of jobs; None: all.
            filters: The filters of `gradient-cli jobs list`.

        Raises:
            UsageError: There is no such filter, or `since` is not a time.
        """
        jobs, _ = self._api.newest_jobs(build_filters(filters, self._api), limit)
        return [Job(self._api, data) for data in jobs]


class Job(JobRecord):
    """A job, with the attributes that the server last reported.

    Attributes:
        artifacts: The files that the job left.
    """

    def __init__(self, api: Api, data: dict[str, Any]) -> None:
        self._api = api
        self._update(data)
        self.artifacts = Artifacts(api, self.id)

    def refresh(self) -> Self:
        """Fetch the job's current state from the server, and return the job."""
        self._update(self._api.job(self.id))
        return self

    def wait(self, timeout: float | None = None, *, check: bool = False) -> Self:
        """Wait until the job has ended, and return it.

        Args:
            timeout: Seconds; None: no limit.
            check: Raise an error if the job did not succeed.

        Raises:
            TimedOut: The job has not ended in time; it keeps running.
            JobFailed: With `check`, the job did not succeed.
        """
        [data] = follow.wait(self._api, [self.id], timeout)
        self._update(data)
        if check:
            self.raise_for_state()
        return self

    def follow(self, *, after: int = 0) -> Iterator[LogLine]:
        """Yield the lines of the job's log after a line number until the job ends, reconnecting as often as needed."""
        for name, data in self._api.follow(self.id, after):
            if name == "line":
                yield LogLine.parse(data)
        self._update(retry_until_connected(lambda: self._api.job(self.id)))

    def logs(self, *, tail: int | None = None) -> list[LogLine]:
        """Return all lines that the job has written so far, or the last `tail` of them."""
        return [LogLine.parse(row) for page in self._api.log_pages(self.id, tail=tail) for row in page["lines"]]

    def metrics(self, *, name: str | None = None, points: int = 1000, source: str = "job") -> pd.DataFrame:
        """Return the job's metrics as a table with the columns `step` and `time`, and one for each metric.

        Args:
            name: Only this metric.
            points: The maximum number of values per metric; longer series are downsampled.
            source: `job` for metrics that the job wrote, `system` for metrics of its machine.

        Raises:
            LibraryMissing: pandas is not installed.
        """
        return metrics.to_frame(self._api.metrics(self.id, name=name, points=points), source)

    def predict(self, *machine_types: str, precision: str | None = None) -> Prediction:
        """Return what bounds the job, and estimates of its time, cost and memory on other machine types.

        Args:
            machine_types: Names or aliases; none: all.
            precision: `float32` or `mixed`; None: the job's precision.
        """
        return Prediction.parse(self._api.predict(self.id, ",".join(machine_types) or None, precision))

    def stop(self, *, now: bool = False) -> Self:
        """Ask the job to stop: SIGTERM, then SIGKILL after its grace period, or `now`. Returns at once."""
        self._update(self._api.stop_job(self.id, now=now))
        return self

    def why(self) -> dict[str, Any]:
        """Return why the job failed: its class (`cause`), `evidence`, `place`, `remedy` and a change for a clone."""
        return self._api.why(self.id)

    def release(self) -> Self:
        """End the time for which the machine of the failed job is kept."""
        self._update(self._api.release_job(self.id))
        return self

    def delete(self) -> None:
        """Delete the job, stopping it if it runs."""
        self._api.delete_job(self.id)


class Artifacts:
    """The files that a job left."""

    def __init__(self, api: Api, job_id: str) -> None:
        self._api = api
        self._job_id = job_id

    def download(self, *patterns: str, to: str | Path | None = None, force: bool = False) -> PathList:
        """Download artifacts, verified by SHA-256; a repeated call resumes an interrupted one.

        Args:
            patterns: Files or folders; `*` and `?` are wildcards. None: all.
            to: The folder; None: `artifacts-ID` in the current one.
            force: Overwrite files in `to` that have other contents.

        Returns:
            The files, including those that were already there.

        Raises:
            ClientError: No artifact matches a pattern, the artifacts were deleted, or a file cannot be written.
        """
        listing = self._api.all_artifacts(self._job_id)
        folder = None if to is None else str(to)
        files, _, target = download.download(self._api, self._job_id, listing, patterns, to=folder, force=force)
        for path, why in target.left_out.items():
            raise ClientError(f"{path!r} was not downloaded: {why}", hint="Download it to another folder.")
        return [Path(target.root, *map(to_local_name, file["path"].split("/"))) for file in files]

    def read(self, path: str) -> bytes:
        return b"".join(self._api.chunks(self._api.artifact(self._job_id, path)))

    def list(self) -> ArtifactList:
        """Return the files that are stored so far."""
        return [Artifact.parse(row) for row in self._api.all_artifacts(self._job_id)["files"]]
