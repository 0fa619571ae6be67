"""A deployment that remembers what it was told and saw, so that a checker can hold the service to it."""

import contextlib
import secrets
import time
from collections.abc import Collection, Iterator
from typing import Any

import httpx
from sqlalchemy import func, inspect, select
from support.deployment import TIMEOUT_SECONDS, Deployment, Process, wait_until
from support.servers.redis_server import RedisServer

from core.db.database import Base, Database
from core.db.models.jobs import Job
from core.jobs.states import TERMINAL

CANARY_NAME = "CANARY_TOKEN"


class ObservedDeployment(Deployment):
    """Remembers every answer that said a job is accepted, and every row that was seen to have ended.

    Each job carries a canary in its environment: a secret that must turn up nowhere else.

    Args:
        redis: Where its messages go.
        canary: Whether jobs carry one.
    """

    def __init__(self, home, *, redis: RedisServer | None = None, canary: bool = True, **settings: str) -> None:
        super().__init__(home, **settings)
        self.canary = f"canary-{secrets.token_hex(16)}" if canary else None
        self.accepted: list[tuple[str, str | None]] = []
        self.seen_ended: dict[str, dict[str, Any]] = {}
        self._redis = redis

    def submit(self, command: str, *, key: str | None = None, **spec: Any) -> str:
        if self.canary is not None:
            spec["envVars"] = {CANARY_NAME: self.canary} | spec.get("envVars", {})
        job_id = super().submit(command, key=key, **spec)
        self.accepted.append((job_id, key))
        return job_id

    def start_remote_worker(self, name: str, **settings: str) -> Process:
        """A worker as on another machine: it shares the stores, but hears nothing except through the broker."""
        home = self.home.with_name(f"{self.home.name}-{name}")
        home.mkdir(exist_ok=True)
        for store in ("workspaces", "logs", "artifacts", "attempts", "storage"):
            (self.home / store).mkdir(exist_ok=True)
            if not (home / store).exists():
                (home / store).symlink_to(self.home / store)
        if not (home / "home-mark").is_symlink():
            (home / "home-mark").symlink_to(self.home / "home-mark")
        return self.start_worker(name, GRADIENT_HOME=str(home), **settings)

    def post(self, command: str, **spec: Any) -> float:
        """Submit without another try; how long the answer took, seconds."""
        began = time.monotonic()
        body = {"machineType": "CPU", "command": command, **spec}
        answer = self.request("POST", "/jobs", json=body, retry=False)
        assert answer.status_code == 201, answer.text
        self.accepted.append((answer.json()["id"], None))
        return time.monotonic() - began

    def wait_ended(self, job_id: str, seconds: float = TIMEOUT_SECONDS) -> dict[str, Any]:
        job = super().wait_ended(job_id, seconds)
        self._record_ended([job_id])
        return job

    def wait_all_ended(self, seconds: float = TIMEOUT_SECONDS, *, expected: int | None = None) -> None:
        """Wait, at the database itself, until every job has ended; what ended is remembered as it then was."""
        wanted = len({job_id for job_id, _ in self.accepted}) if expected is None else expected
        with self.database() as database:

            def ended() -> bool:
                with database.read() as session:
                    counted = select(func.count(Job.seq)).where(Job.state.in_(TERMINAL))
                    return (session.scalar(counted) or 0) >= wanted

            # Asked less often than a single job: it costs the database the jobs' own time.
            deadline = time.monotonic() + seconds
            while not ended():
                assert time.monotonic() < deadline, f"waited {seconds:.0f} s for {wanted} jobs to end: {self.states()}"
                time.sleep(0.2)
        self._record_ended()

    def states(self) -> dict[str, int]:
        """Count the jobs in each state, in the database."""
        with self.database() as database, database.read() as session:
            rows = session.execute(select(Job.state, func.count(Job.seq)).group_by(Job.state))
            return {state.value: count for state, count in rows}

    def wait_states(self, seconds: float = TIMEOUT_SECONDS, **wanted: int) -> None:
        """Wait until at least so many jobs are in each of these states."""
        wait_until(
            lambda: all(self.states().get(state, 0) >= count for state, count in wanted.items()),
            f"{wanted} (now {self.states()})",
            seconds,
        )

    def open_gate(self, name: str = "go") -> None:
        """Let the jobs end that wait for it."""
        (self.storage / name).touch()

    def rows(self, *tables: type[Base]) -> list[list[dict[str, Any]]]:
        """All rows of each table, as the database holds them."""
        with self.database() as database, database.read() as session:
            return [[dict(row._mapping) for row in session.execute(select(*_columns(table)))] for table in tables]

    @contextlib.contextmanager
    def database(self) -> Iterator[Database]:
        """A way to the database that changes nothing in it."""
        database = Database(self.direct_url, read_only=True)
        try:
            yield database
        finally:
            database.close()

    @property
    def direct_url(self) -> str:
        """The database's URL for tests, past anything that stands between it and the service."""
        return self.database_url

    def get_without_key(self, path: str, key: str | None) -> httpx.Response:
        """One request with no key, or with a wrong one."""
        return self.client.get(self.cli_json["url"] + path, headers={"x-api-key": key} if key else {})

    def messages(self) -> bytes:
        """Everything that was ever sent through Redis, as its append-only file holds it."""
        return b"" if self._redis is None else self._redis.read_append_only_file()

    def containers(self) -> list[tuple[str, int]]:
        """Job id and attempt of every container that is there."""
        return []

    def running(self) -> list[tuple[str, int, int]]:
        """Job id, attempt and pid of what runs of the jobs."""
        return [
            (env["GRADIENT_JOB_ID"], int(env["GRADIENT_ATTEMPT"]), process.pid)
            for process, env in self.find_job_environments()
            if "GRADIENT_ATTEMPT" in env
        ]

    def _record_ended(self, ids: Collection[str] | None = None) -> None:
        for row in self.rows(Job)[0]:
            if row["state"] in TERMINAL and (ids is None or row["id"] in ids):
                self.seen_ended.setdefault(row["id"], row)


def _columns(table: type[Base]) -> list[Any]:
    return [getattr(table, attribute.key).label(attribute.key) for attribute in inspect(table).column_attrs]
