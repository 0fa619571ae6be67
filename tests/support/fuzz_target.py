"""The application over one database, with a job in every state, and a fuzzer's requests aimed at what is there."""

import functools
import io
import json
import math
import os
import re
import tempfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hypothesis import HealthCheck, Phase, settings
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.core.parameters import ParameterLocation
from schemathesis.python.asgi import ASGIClient, get_client
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from support.live_service import FakeWorker, make_job_body, make_zip

from core.db.database import Database
from core.db.models.jobs import Job
from core.jobs import lifecycle
from core.jobs.tracking import metrics
from core.notifications import deliveries, receivers
from core.security import api_keys, credentials
from core.security.credentials import ALL_PROJECTS
from core.security.encryption import Vault
from core.settings import Settings
from core.settings.api import ApiSettings, SignInSettings
from core.storage.artifacts.paths import to_public_path
from core.storage.workspaces.limits import WorkspaceLimits
from service.main import create_app
from service.original.routes.s3_read import BUCKET
from service.schemas.base import parse_request
from service.schemas.comparisons import CompareJobs
from service.schemas.jobs import SubmitJob
from service.schemas.schedules import SubmitSchedule
from service.schemas.sweeps import SubmitSweep
from service.submission import compare, create, schedules, sweeps, trials
from service.submission.stages import RequestOrigin

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    response_headers_conformance,
]
ARTIFACT_FILES = {
    "model/weights.h5": bytes(range(256)) * 64,
    "notes.txt": "grüße\n".encode(),
    "ünï 🚀 #1?.bin": b"",
    "a%41": b"x",
}
RANGE_HEADERS = ("bytes=0-3", "bytes=2-", "bytes=-5", "bytes=99999999-", "bytes=5-2", "bytes=0-1,3-4", "lines=1-2")
ENDED_STATES = ("succeeded", "failed", "faulty", "cancelled")
STATES = (
    "starting",
    "running",
    "finishing",
    *ENDED_STATES,
    "waiting",
)  # what waits comes last: claims take what came first
_ANSWER_SECONDS = 90
_JOB_ID = re.compile(r"j[a-z0-9]{13}\Z")
_CONSUMING_OPERATIONS = {
    "DELETE /jobs/{job_id}",
    "POST /jobs/{job_id}/stop",
    "POST /original/jobs/{job_id}/stop",
    "POST /original/jobs/{job_id}/destroy",
    "POST /original/jobs/{job_id}/artifactsDestroy",
}
"""Operations that change a job: each gets a job of its own."""


WITH_COVERAGE = "GRADIENT_FUZZ_EXAMPLES" in os.environ
"""True: every boundary of the description is tried, too, which takes thousands of requests."""


def fuzz_settings(few: int) -> settings:
    """Build Hypothesis settings for `few` examples, or GRADIENT_FUZZ_EXAMPLES of them; always the same ones."""
    return settings(
        max_examples=int(os.environ.get("GRADIENT_FUZZ_EXAMPLES", few)),
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


@functools.cache
def describe_api() -> dict[str, Any]:
    """Build the description that clients get, without the dashboard's own routes."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/gradient.db")
        app = create_app(Settings(home=Path(folder)), database=database, wake=lambda: None)
        document = json.loads(json.dumps(app.openapi(), sort_keys=True))
        database.close()
    document["paths"] = {path: value for path, value in document["paths"].items() if not path.startswith("/ui")}
    return document


class FuzzTarget:
    """An application to send anything to.

    Args:
        home: An empty folder.
        database: Empty and migrated.
    """

    def __init__(self, home: Path, database: Database) -> None:
        limits = {"max_upload_bytes": 4 * 1024**2}
        with database.write() as session:
            key, self.api_key = api_keys.create(session, "fuzz")
            self._spare_key_id = api_keys.create(session, "spare")[0].id
        sign_in = SignInSettings(administrators=[key.id])
        configured = Settings(home=home, sign_in=sign_in, api=ApiSettings(public_url="http://testserver", **limits))
        self.app = create_app(configured, database=database, wake=lambda: None)
        self._client = get_client(self.app)
        self._stores = self.app.state.app_state
        self._worker = FakeWorker(self._stores)
        self._database = database
        with database.write() as session:
            vault = Vault(configured)
            credentials.put_secret(session, vault, ALL_PROJECTS, "known", "x")
            credentials.put_registry(session, vault, credentials.ALL_PROJECTS, "known.example", "alice", "x")
        self.jobs = {state: self._create_job(state, home / "left") for state in STATES}
        self.response_counts: Counter[tuple[str, int]] = Counter()
        self.project = self._worker.get(self.jobs["waiting"]).project_id
        limits = WorkspaceLimits(max_upload_bytes=1024**2, max_bytes=1024**2)
        self.archive = self._stores.workspaces.add(io.BytesIO(make_zip()), limits).sha256

    def submit(self) -> str:
        """The id of a new job."""
        request = parse_request(SubmitJob, make_job_body(tags=["fuzz"], envVars={"API_KEY": "x"}))
        return create.submit(self._stores, RequestOrigin("k", "r", None), request, None).job.id

    def call(self, case: Case) -> Response:
        """Send a request; three of four that name something name something that is there."""
        self._use_existing(case)
        headers = {"x-api-key": self.api_key}
        with self.client() as client:
            answer = case.call(app=self.app, headers=headers, timeout=_ANSWER_SECONDS, session=client)
        self.response_counts[case.operation.label, answer.status_code] += 1
        return answer

    @contextmanager
    def client(self) -> Iterator[ASGIClient]:
        """Lend the one client of all requests, without the cookies of earlier ones: a new one costs as much again."""
        self._client.cookies.clear()
        with self._client:
            yield self._client

    def _use_existing(self, case: Case) -> None:
        negated = {where for where, part in case.meta.components.items() if part.mode == GenerationMode.NEGATIVE}
        if (
            case.operation.label == "POST /jobs"
            and isinstance(case.body, dict)
            and ParameterLocation.BODY not in negated
        ):
            self._use_existing_in_body(case.body)
        if "Range" in case.headers:
            case.headers["Range"] = RANGE_HEADERS[zlib.crc32(case.headers["Range"].encode()) % len(RANGE_HEADERS)]
        if "jobId" in (case.query or {}) and ParameterLocation.QUERY not in negated:
            chance = zlib.crc32(repr(case.query).encode())
            if chance % 4:
                case.query["jobId"] = self.jobs[STATES[chance // 4 % len(STATES)]]
        if case.path_parameters and ParameterLocation.PATH not in negated:
            self._use_existing_in_path(case)

    def _use_existing_in_body(self, body: dict) -> None:
        chance = zlib.crc32(repr(sorted(body)).encode())
        if chance % 4 == 0:
            return
        existing = {"machineType": "cpu", "projectId": self.project, "workspaceSha256": self.archive, "command": "true"}
        body.update({name: value for name, value in existing.items() if name in body})
        for name in ("project", "workspace", "projectId", "workspaceSha256")[chance // 4 % 4 :]:
            body.pop(name, None)
        body.update({name: 7 for name, value in body.items() if isinstance(value, int | float) and chance // 16 % 4})

    def _use_existing_in_path(self, case: Case) -> None:
        chance = zlib.crc32(repr(sorted(case.path_parameters.items())).encode())
        if chance % 4 == 0 or _JOB_ID.match(case.path_parameters.get("job_id", "")):
            return
        existing = {
            "job_id": lambda: self._choose_job(case, chance),
            "project_id": lambda: self.project,
            "sha256": lambda: self.archive,
            "bucket": lambda: BUCKET,
            "key": lambda: f"{self.jobs['succeeded']}/{sorted(ARTIFACT_FILES)[chance // 32 % len(ARTIFACT_FILES)]}",
            "path": lambda: quote(to_public_path(sorted(ARTIFACT_FILES)[chance // 32 % len(ARTIFACT_FILES)])),
            "comparison_id": self._compare,
            "schedule_id": self._schedule,
            "sweep_id": lambda: self._sweep(case),
            "number": lambda: "0",
            "name": lambda: "known",
            "host": lambda: "known.example",
            "worker": lambda: "w",
            "key_id": lambda: self._spare_key_id,
            "member": lambda: self._spare_key_id,
            "receiver": lambda: self._receiver()[0],
            "delivery_id": lambda: self._receiver()[1],
        }
        case.path_parameters = {name: existing[name]() for name in case.path_parameters}

    def _receiver(self) -> tuple[str, str]:
        """The name of a receiver that cannot be reached, and the id of a message to it."""
        settings = {"url": "http://127.0.0.1:9", "events": [], "jobs": [], "quiet_seconds": 0}
        with self._database.write() as session:
            receiver = receivers.put(session, Vault(self._stores.settings), "k", "known", settings)[0]
            return receiver.id, deliveries.send_test(session, receiver).id

    def _compare(self) -> str:
        """The id of a new comparison, of jobs that no earlier request has deleted."""
        request = CompareJobs(jobs=[self.submit(), self.submit()])
        with self._database.write() as session:
            return compare.compare_jobs(session, self._stores, RequestOrigin("k", "r", None), request)[0]

    def _schedule(self) -> str:
        request = SubmitSchedule.model_validate(make_job_body(cron="0 3 * * *"))
        return schedules.create(self._stores, RequestOrigin("k", "r", None), request, None)[0]

    def _sweep(self, case: Case) -> str:
        """The id of a new sweep; for reports of trials, one of which a program evaluates the first."""
        by_programs = "{number}" in case.operation.path
        space = {"space": {"a": "1,2"}, "method": "grid"}
        request = SubmitSweep.model_validate(space if by_programs else make_job_body(**space))
        sweep = sweeps.create(self._stores, RequestOrigin("k", "r", None), request, None)[0]
        if by_programs:
            trials.request(self._stores, sweep, "k")
            if isinstance(case.body, dict) and isinstance(case.body.get("key"), str):
                case.body["key"] = "k"
        return sweep

    def _choose_job(self, case: Case, chance: int) -> str:
        if case.operation.label in _CONSUMING_OPERATIONS:
            return self.submit()
        state = STATES[chance // 4 % len(STATES)]
        if case.operation.path.endswith("/logs") and state in ENDED_STATES and chance % 2:
            # Only what has ended: a log that goes on is followed for ever.
            case.headers["Accept"] = "text/event-stream"
        return self.jobs[state]

    def _create_job(self, state: str, left: Path) -> str:
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
            self._run_job(job, state, left)
        return job_id

    def _run_job(self, job: Job, state: str, left: Path) -> None:
        with self._database.write() as session:
            job = lifecycle.mark_running(session, job, {"pid": 1})
            metrics.add(session, [_metric_point(job.id, step) for step in range(20)])
        with self._stores.logs.open_writer(job.id, 1) as log:
            log.append("line\nümläut \x1b[31m\n\xff".encode("latin-1") + b"partial", 1_700_000_000_000)
        if state == "running":
            return
        for name, content in ARTIFACT_FILES.items():
            path = left / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        self._stores.artifacts.close(job.id, 1, left)
        if state == "finishing":
            with self._database.write() as session:
                lifecycle.mark_finishing(session, job, "completed", exit_code=0)
            return
        reason, code = {
            "succeeded": ("completed", 0),
            "failed": ("exit_nonzero", 3),
            "faulty": ("launch_failed", None),
        }[state]
        self._worker.end(job, reason, exit_code=code)


def _metric_point(job_id: str, step: int) -> dict:
    values = {"loss": 1 / (step + 1), "odd": math.nan if step % 3 else 1e308}
    at = datetime(2026, 1, 1, second=step, tzinfo=UTC)
    return {"job_id": job_id, "attempt": 1, "source": "job", "offset": step, "step": step, "at": at, "values": values}
