"""The application over one database, with a job in every state, and a fuzzer's requests aimed at what is there."""

import io
import json
import zlib
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from schemathesis import Case, GenerationMode, Response
from schemathesis.core.parameters import ParameterLocation
from serving import Worker, a_job, a_zip

from core import keys
from core.archives import ArchiveLimits
from core.db import Database
from core.jobs import lifecycle
from core.jobs.models import Job
from core.settings import ApiSettings, Settings
from service import submission
from service.auth import KeyHolder
from service.main import create_app
from service.uploads import Body

FILES = {"model/weights.h5": bytes(range(256)) * 64, "notes.txt": "grüße\n".encode(), "ünï 🚀 #1?.bin": b"", "a%41": b"x"}
ENDED = ("succeeded", "failed", "faulty", "cancelled")
STATES = ("starting", "running", "finishing", *ENDED, "waiting")  # what waits comes last: claims take what came first
_USED_UP = {"DELETE /jobs/{job_id}", "POST /jobs/{job_id}/stop"}
"""Operations that leave a job another than they found it: each gets a job of its own."""


class Fuzzed:
    """An application to send anything to.

    Args:
        home: An empty folder.
        database: Empty and migrated.
    """

    def __init__(self, home: Path, database: Database) -> None:
        limits = {"max_upload_bytes": 2 * 1024**2, "max_unpacked_bytes": 4 * 1024**2}
        settings = Settings(home=home, api=ApiSettings(public_url="http://testserver", **limits))
        self.app = create_app(settings, database=database, wake=lambda: None)
        self._stores = self.app.state.stores
        self._worker = Worker(self._stores)
        self._database = database
        with database.write() as session:
            self.secret = keys.create(session, "fuzz")[1]
        self.jobs = {state: self._job(state, home / "left") for state in STATES}
        self.project = self._worker.get(self.jobs["waiting"]).project_id
        limits = ArchiveLimits(max_upload_bytes=1024**2, max_bytes=1024**2)
        self.archive = self._stores.workspaces.add(io.BytesIO(a_zip()), limits).sha256

    def submit(self) -> str:
        """The id of a new job."""
        body = Body(json.dumps(a_job(tags=["fuzz"], envVars={"API_KEY": "x"})).encode())
        return submission.submit(self._stores, KeyHolder("k", "fuzz"), body, None)[0].id

    def call(self, case: Case, *, key: bool = True) -> Response:
        """Send a request; three of four that name something name something that is there."""
        self._aim(case)
        return case.call(app=self.app, headers={"x-api-key": self.secret} if key else None)

    def _aim(self, case: Case) -> None:
        component = case.meta.components.get(ParameterLocation.PATH) if case.meta else None
        if not case.path_parameters or (component and component.mode == GenerationMode.NEGATIVE):
            return
        chance = zlib.crc32(repr(sorted(case.path_parameters.items())).encode())
        if chance % 4 == 0:
            return
        there = {
            "job_id": lambda: self._target(case, chance),
            "project_id": lambda: self.project,
            "sha256": lambda: self.archive,
            "path": lambda: quote(sorted(FILES)[chance // 8 % len(FILES)]),
        }
        case.path_parameters = {name: there[name]() for name in case.path_parameters}

    def _target(self, case: Case, chance: int) -> str:
        if case.operation.label in _USED_UP:
            return self.submit()
        state = STATES[chance // 4 % len(STATES)]
        if case.operation.path.endswith("/logs") and state in ENDED and chance % 2:
            # Only what has ended: a log that goes on is followed for ever.
            case.headers["Accept"] = "text/event-stream"
        return self.jobs[state]

    def _job(self, state: str, left: Path) -> str:
        job_id = self.submit()
        if state == "waiting":
            return job_id
        if state == "cancelled":
            with self._database.write() as session:
                lifecycle.request_stop(session, job_id)
            return job_id
        job = self._worker.claim()
        assert job.id == job_id
        if state != "starting":
            self._run(job, state, left)
        return job_id

    def _run(self, job: Job, state: str, left: Path) -> None:
        with self._database.write() as session:
            job = lifecycle.started(session, job, {"pid": 1})
            lifecycle.add_metrics(session, [_metric(job.id, step) for step in range(20)])
        with self._stores.logs.open_writer(job.id, 1) as log:
            log.append("line\nümläut \x1b[31m\n\xff".encode("latin-1") + b"partial", 1_700_000_000_000)
        if state == "running":
            return
        for name, content in FILES.items():
            path = left / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._stores.artifacts.close(job.id, 1, left)
        if state == "finishing":
            with self._database.write() as session:
                lifecycle.ended(session, job, "completed", exit_code=0)
            return
        reason, code = {"succeeded": ("completed", 0), "failed": ("exit_nonzero", 3), "faulty": ("launch_failed", None)}[state]
        self._worker.end(job, reason, exit_code=code)


def _metric(job_id: str, step: int) -> dict:
    values = {"loss": 1 / (step + 1), "odd": None if step % 3 else 1e308}
    at = datetime(2026, 1, 1, second=step, tzinfo=UTC)
    return {"job_id": job_id, "attempt": 1, "source": "job", "offset": step, "step": step, "at": at, "values": values}
