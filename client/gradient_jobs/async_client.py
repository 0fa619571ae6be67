"""The client for asyncio: each call runs in a thread, over a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union

from gradient_cli import config
from gradient_cli.api.client import Api
from gradient_cli.api.retries import retry_delay
from gradient_cli.api.transport import Transport
from gradient_cli.errors import ClientError, ServerError, TimedOut
from gradient_cli.follow import describe_state
from gradient_jobs.client import Job, Jobs
from gradient_jobs.options import JobFilters, JobOptions
from gradient_jobs.records import Artifact, JobRecord, LogLine, Prediction

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self, Unpack

    AsyncJobList = list["AsyncJob"]
    AsyncBatchResults = list[Union["AsyncJob", ServerError]]
    ArtifactList = list[Artifact]
    PathList = list[Path]

T = TypeVar("T")

_POLL_SECONDS = 1.0
_LINES = 2000


async def _call(settings: config.Settings, action: Callable[[Api], T]) -> T:
    """Run one action in a thread. If the task is cancelled, its connection is closed, which ends the thread."""
    api = Api(Transport(settings.url, settings.key))
    try:
        return await asyncio.to_thread(action, api)
    finally:
        api.close()


async def _retry_until_connected(request: Callable[[], Awaitable[T]]) -> T:
    """Send a request, again and again while the server cannot answer."""
    while True:
        try:
            return await request()
        except ClientError as error:
            delay = retry_delay(error, _POLL_SECONDS)
        await asyncio.sleep(delay)


class AsyncClient:
    """A Gradient Jobs server, for asyncio; the arguments and errors are those of Client.

    Attributes:
        jobs: The server's jobs.
    """

    def __init__(self, url: str | None = None, api_key: str | None = None) -> None:
        self._settings = config.resolve(url, api_key)
        self.jobs = AsyncJobs(self._settings)

    @property
    def url(self) -> str:
        """The server's address."""
        return self._settings.url


class AsyncJobs:
    """The jobs of a server."""

    def __init__(self, settings: config.Settings) -> None:
        self._settings = settings

    async def create(self, **options: Unpack[JobOptions]) -> AsyncJob:
        return self._job(await _call(self._settings, lambda api: Jobs(api).create(**options)))

    async def create_batch(
        self, jobs: Iterable[JobOptions], *, idempotency_keys: Sequence[str] | None = None
    ) -> AsyncBatchResults:
        listed = list(jobs)
        results = await _call(
            self._settings, lambda api: Jobs(api).create_batch(listed, idempotency_keys=idempotency_keys)
        )
        return [self._job(each) if isinstance(each, Job) else each for each in results]

    async def get(self, job_id: str) -> AsyncJob:
        return self._job(await _call(self._settings, lambda api: Jobs(api).get(job_id)))

    def _job(self, job: Job) -> AsyncJob:
        return AsyncJob(self._settings, job.data)

    async def list(self, *, limit: int | None = 50, **filters: Unpack[JobFilters]) -> AsyncJobList:
        """Return jobs, newest first; the arguments are those of `Client.jobs.list`."""
        found = await _call(self._settings, lambda api: Jobs(api).list(limit=limit, **filters))
        return [self._job(job) for job in found]


class AsyncJob(JobRecord):
    """A job; its attributes are those of the last answer of the server.

    Attributes:
        artifacts: The files that it left.
    """

    def __init__(self, settings: config.Settings, data: dict[str, Any]) -> None:
        self._settings = settings
        self._update(data)
        self.artifacts = AsyncArtifacts(self)

    async def call(self, action: Callable[[Job], T]) -> T:
        """Run an action on this job in a thread: `await job.call(lambda job: job.delete())`."""
        data = self.data
        return await _call(self._settings, lambda api: action(Job(api, data)))

    async def refresh(self) -> Self:
        """Ask the server for the job's present state, and return the job."""
        self._update((await self.call(Job.refresh)).data)
        return self

    async def stop(self, *, now: bool = False) -> Self:
        """Ask the job to stop, without its grace period if `now`. Returns at once."""
        self._update((await self.call(lambda job: job.stop(now=now))).data)
        return self

    async def wait(self, timeout: float | None = None, *, check: bool = False) -> Self:
        """Wait until the job has ended, and return it; the arguments and errors are those of `Job.wait`."""

        async def poll() -> None:
            while not self.ended:
                await asyncio.sleep(_POLL_SECONDS)
                await _retry_until_connected(self.refresh)

        await self.refresh()
        try:
            await asyncio.wait_for(poll(), timeout)
        except asyncio.TimeoutError:
            raise TimedOut(f"job {self.id} has not ended within {timeout:g} s: {describe_state(self.data)}") from None
        if check:
            self.raise_for_state()
        return self

    async def follow(self, *, after: int = 0) -> AsyncIterator[LogLine]:
        """Yield the lines of the job's log after a line number until the job ends. Asks for new ones once a second."""
        complete = False
        while not complete:
            read = partial(Api.logs, job_id=self.id, line=after, limit=_LINES)
            page = await _retry_until_connected(partial(_call, self._settings, read))
            for row in page["lines"]:
                yield LogLine.parse(row)
                after = int(row["line"])
            complete = page["complete"] and not page["lines"]
            if not complete and not page["lines"]:
                await asyncio.sleep(_POLL_SECONDS)
        await _retry_until_connected(self.refresh)

    async def logs(self, *, tail: int | None = None) -> list[LogLine]:
        """Return all lines that the job has written so far, or the last `tail` of them."""
        return await self.call(lambda job: job.logs(tail=tail))

    async def metrics(self, *, name: str | None = None, points: int = 1000, source: str = "job") -> pd.DataFrame:
        """Return the job's metrics as a table; the arguments and errors are those of `Job.metrics`."""
        return await self.call(lambda job: job.metrics(name=name, points=points, source=source))

    async def predict(self, *machine_types: str, precision: str | None = None) -> Prediction:
        """Return what bounds the job, and estimates of it; the arguments are those of `Job.predict`."""
        return await self.call(lambda job: job.predict(*machine_types, precision=precision))


class AsyncArtifacts:
    """The files that a job left."""

    def __init__(self, job: AsyncJob) -> None:
        self._job = job

    async def download(self, *patterns: str, to: str | Path | None = None, force: bool = False) -> PathList:
        """Download artifacts; the arguments, result and errors are those of `Job.artifacts.download`."""
        return await self._job.call(lambda job: job.artifacts.download(*patterns, to=to, force=force))

    async def read(self, path: str) -> bytes:
        return await self._job.call(lambda job: job.artifacts.read(path))

    async def list(self) -> ArtifactList:
        """Return the files that are stored so far."""
        return await self._job.call(lambda job: job.artifacts.list())
