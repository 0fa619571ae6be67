"""Clients: they submit with an Idempotency-Key, try again at the other API process, follow logs over cut connections,
and remember what they were told.
"""

import contextlib
import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
from chaos.stack import DOCKER_TYPE, Stack, new_idempotency_key
from chaos.workload import JOB_KINDS, AcceptedJob, draw_job
from sqlalchemy.exc import DatabaseError
from support.servers.private_docker_engine import SHELL_IMAGE

from core.errors import StoreUnavailable

CLIENT_COUNT = 4
MAX_ACTIVE_JOBS = 12
"""The most jobs that wait or run at a time, apart from canaries."""
_RETRY_STATUSES = {429, 503}


@dataclass
class FollowedLog:
    """The record of what followers of one job's log were sent."""

    job_id: str
    last: int = 0
    connections: int = 0
    complete: bool = False
    text: Any = field(default_factory=hashlib.sha256)


class Clients:
    """All clients, and what they remember.

    Args:
        stack: The service.
        seed: The seed of their choices.
    """

    def __init__(self, stack: Stack, seed: int) -> None:
        self.stack = stack
        self.accepted: dict[str, AcceptedJob] = {}
        self.violations: list[tuple[float, str]] = []
        """Time, by the monotonic clock, and description of each wrong answer."""
        self.followed: list[FollowedLog] = []
        self.answers = 0
        self.slowest_post = 0.0
        self._seed = seed
        self._http = httpx.Client(timeout=httpx.Timeout(20, connect=2), limits=httpx.Limits(max_connections=None))
        self._ending = threading.Event()
        self._threads: list[threading.Thread] = []
        self._ended_ids: set[str] = set()

    # ---- Requests

    def request(self, method: str, path: str, *, first: int = 0, fine: tuple[int, ...] = (), **options: Any) -> Any:
        """Send a request to one API process after the other until one answers.

        Args:
            method: Of HTTP.
            path: After the address.
            first: Which API process is asked first.
            fine: Statuses of 400 and more that are answers, too.
            options: Of the HTTP client.

        Raises:
            TimeoutError: Nobody answered for minutes.
        """
        deadline = time.monotonic() + 240
        turn = first
        while time.monotonic() < deadline:
            url = self.stack.urls[turn % len(self.stack.urls)]
            turn += 1
            headers = {"x-api-key": self.stack.cli_json["apiKey"]} | options.get("headers", {})
            try:
                answer = self._http.request(method, url + path, **{**options, "headers": headers})
            except httpx.TransportError:
                time.sleep(0.2)
                continue
            self.answers += 1
            if answer.status_code < 400 or answer.status_code in fine:
                return answer
            if answer.status_code not in _RETRY_STATUSES:
                self._add_violation(f"{method} {path} was answered with {answer.status_code}: {answer.text[:300]}")
                if answer.status_code < 500:
                    return answer
            time.sleep(min(float(answer.headers.get("retry-after", 0.5)), 5))
        raise TimeoutError(f"{method} {path} was not answered for four minutes")

    def submit(self, kind: str, machine_type: str, chance: random.Random) -> AcceptedJob:
        """Submit a job, sometimes twice with the same key, at two API processes."""
        wanted = JOB_KINDS[kind]
        key = new_idempotency_key()
        body = {"machineType": machine_type, "command": wanted.command(machine_type), "name": kind, **wanted.spec}
        if machine_type == DOCKER_TYPE:
            # A storage of their own: simulated jobs run as the worker's user, containers as their project's.
            body |= {"container": SHELL_IMAGE, "project": "containers"}
        send = {"json": body, "headers": {"Idempotency-Key": key}}
        first = chance.randrange(2)
        began = time.monotonic()
        ids = {self._job_id(self.request("POST", "/jobs", first=first, **send))}
        self.slowest_post = max(self.slowest_post, time.monotonic() - began)
        if chance.random() < 0.25:
            ids.add(self._job_id(self.request("POST", "/jobs", first=first + 1, **send)))
        for job_id in ids:
            self.stack.accepted.append((job_id, key))
            self.accepted[job_id] = AcceptedJob(job_id, kind, machine_type)
        return self.accepted[min(ids)]

    def clone(self, one: AcceptedJob) -> None:
        """Submit a job once more by its id."""
        key = new_idempotency_key()
        answer = self.request("POST", f"/jobs/{one.job_id}/clone", fine=(404,), headers={"Idempotency-Key": key})
        if answer.status_code != 404:
            job_id = self._job_id(answer)
            self.stack.accepted.append((job_id, key))
            self.accepted[job_id] = AcceptedJob(job_id, one.kind, one.machine_type)

    def stop(self, one: AcceptedJob, first: int = 0) -> None:
        """Ask for its stop."""
        one.stop_requested = True
        self.request("POST", f"/jobs/{one.job_id}/stop", first=first, fine=(404,))

    def delete(self, one: AcceptedJob, first: int = 0) -> None:
        """Remove it, if it has ended."""
        one.deleted = one.stop_requested = True
        self.request("DELETE", f"/jobs/{one.job_id}", first=first, fine=(404, 409))

    def state(self, job_id: str, first: int = 0) -> str:
        """Its state as clients see it."""
        answer = self.request("GET", f"/jobs/{job_id}", first=first, fine=(404,))
        return answer.json()["state"] if answer.status_code == 200 else "Deleted"

    def _job_id(self, answer: httpx.Response) -> str:
        return answer.json()["id"]

    def _add_violation(self, words: str) -> None:
        self.violations.append((time.monotonic(), words))

    # ---- Load

    def begin(self) -> None:
        """Submit jobs and follow some, until `end`."""
        self._spawn(self._poll_ended_forever)
        for number in range(CLIENT_COUNT):
            self._spawn(self._submit_forever, random.Random(f"{self._seed} client {number}"))  # noqa: S311

    def end(self, seconds: float) -> None:
        """Submit nothing more, and wait for those who follow."""
        self._ending.set()
        deadline = time.monotonic() + seconds
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        """Break what connections there are."""
        self._ending.set()
        self._http.close()

    def active_jobs(self) -> list[AcceptedJob]:
        """Jobs that were not seen to have ended, canaries apart."""
        running = [one for one in list(self.accepted.values()) if one.job_id not in self._ended_ids]
        return [one for one in running if one.kind != "canary"]

    def _spawn(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=self._run_guarded, args=(work, *arguments), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run_guarded(self, work: Callable[..., None], *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - a client that fails is a finding, not the end of the run
            self._add_violation(f"a client failed: {error!r}")

    def _submit_forever(self, chance: random.Random) -> None:
        while not self._ending.is_set():
            if len(self.active_jobs()) >= MAX_ACTIVE_JOBS:
                self._ending.wait(0.5)
                continue
            one = self.submit(*draw_job(chance), chance)
            if chance.random() < 0.4:
                self._spawn(self._follow, one, random.Random(chance.random()))  # noqa: S311 - repeatable, not secret
            if chance.random() < 0.07:
                self.clone(one)
            if one.kind == "stubborn" and chance.random() < 0.5:
                self._spawn(self._stop_later, one, 2 + 6 * chance.random())
            self._ending.wait(0.5 + 2 * chance.random())

    def _stop_later(self, one: AcceptedJob, seconds: float) -> None:
        self._ending.wait(seconds)
        self.stop(one)

    def _poll_ended_forever(self) -> None:
        while not self._ending.wait(1):
            with contextlib.suppress(StoreUnavailable, DatabaseError):
                self._ended_ids |= self.stack.ended_ids()

    # ---- Logs

    def _follow(self, one: AcceptedJob, chance: random.Random) -> None:
        """Follow a log, over connections that are cut at random and taken up at the other API process."""
        followed = FollowedLog(one.job_id)
        self.followed.append(followed)
        deadline = time.monotonic() + 600
        while not followed.complete and time.monotonic() < deadline and not one.deleted:
            url = self.stack.urls[followed.connections % 2]
            followed.connections += 1
            until = time.monotonic() + chance.uniform(0.3, 6)
            try:
                self._follow_once(followed, url, until)
            except httpx.HTTPError:
                time.sleep(0.2)

    def _follow_once(self, followed: FollowedLog, url: str, until: float) -> None:
        headers = {"x-api-key": self.stack.cli_json["apiKey"], "accept": "text/event-stream"}
        if followed.last:
            headers["last-event-id"] = str(followed.last)
        timeout = httpx.Timeout(20, connect=2)
        with self._http.stream("GET", f"{url}/jobs/{followed.job_id}/logs", headers=headers, timeout=timeout) as answer:
            if answer.status_code != 200:
                if answer.status_code not in {*_RETRY_STATUSES, 404}:
                    self._add_violation(f"following {followed.job_id} was answered with {answer.status_code}")
                time.sleep(0.5)
                return
            for kind, data in _parse_events(answer.iter_lines()):
                if kind == "line":
                    self._handle_line(followed, data)
                followed.complete = followed.complete or kind == "end"
                if time.monotonic() > until:
                    return

    def _handle_line(self, followed: FollowedLog, row: dict[str, Any]) -> None:
        if row["line"] != followed.last + 1:
            self._add_violation(f"{followed.job_id}: a follower was sent line {row['line']} after {followed.last}")
        followed.last = row["line"]
        followed.text.update(row["message"].encode() + b"\n")


def _parse_events(lines: Iterator[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Kind and data of each server-sent event."""
    kind = ""
    for line in lines:
        name, _, value = line.partition(": ")
        if name == "event":
            kind = value
        elif name == "data":
            yield kind, json.loads(value)
