"""One checker of what must hold of every job, whatever happened to the service.

`collect` reads the database, the events, what the jobs wrote down themselves, what the API serves and what is left on
the machine; `violations` compares them. The invariants:

I1   a job that was accepted is there once, and queued, held by a worker or ended once
I2   the command starts at most once an attempt
I3   no two runs of a job live at the same time
I4   moves follow the graph, an ended job never changes
I5   exit code and reason are true
I6   the stored log is what was printed: all of it in order, or its ends with a mark between them
I7   a manifest names only what is there, with the right hash, and a complete one names all
I8   a GPU is held by one attempt that is under way
I9   nothing of an ended job is left on the machine
I10  a stop is honoured, and soon
I11  a client without a key learns nothing, not even what exists
I12  a secret of a job is in no log, row, event or message
"""

import hashlib
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from support.deployment import TIMEOUT_SECONDS
from support.faults import job_journal
from support.faults.job_journal import JobJournal
from support.faults.observed_deployment import ObservedDeployment

from core.db.database import Base
from core.db.models.jobs import Attempt, Event, GpuAllocation, Job
from core.jobs.reasons import REASONS
from core.jobs.states import OWNED, TERMINAL, TRANSITIONS, JobState

LOG_GAP_PREFIX = b"[gradient] "
STOP_SECONDS = 15.0
_OWN_ENDS = {"completed": {0}, "killed": {137}, "signalled": range(129, 193), "exit_nonzero": range(1, 256)}
_UNKNOWN_JOB_ID = "j000000000000z"


@dataclass
class ServedOutputs:
    """The outputs of one job, as the API serves them."""

    raw: bytes = b""
    lines: list[int] = field(default_factory=list)
    complete: bool = True
    artifacts_state: str = "none"
    artifacts: dict[str, tuple[str | None, str]] = field(default_factory=dict)
    """Path → hash as listed, hash of the bytes as served."""


@dataclass
class History:
    """Everything that is known of a deployment's jobs."""

    jobs: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    gpus: list[dict[str, Any]] = field(default_factory=list)
    accepted: list[tuple[str, str | None]] = field(default_factory=list)
    """Id, and Idempotency-Key, of every answer that said a job is accepted."""
    seen_ended: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Rows as they were when somebody saw that they had ended."""
    journals: dict[tuple[str, int], JobJournal] = field(default_factory=dict)
    served: dict[str, ServedOutputs] = field(default_factory=dict)
    processes: list[tuple[str, int, int]] = field(default_factory=list)
    """Job id, attempt and pid of what runs."""
    scratch: list[tuple[str, int]] = field(default_factory=list)
    containers: list[tuple[str, int]] = field(default_factory=list)
    disclosing_routes: list[str] = field(default_factory=list)
    """Routes whose answers reveal to a client without a key whether a job exists."""
    canary_leaks: list[str] = field(default_factory=list)
    """Places where the canary was found."""
    stop_seconds: float | None = STOP_SECONDS
    """Time limit for a stop, on top of the job's own grace; None if something was broken at the time."""


@dataclass
class InvariantReport:
    """The result of a check, for the table."""

    jobs: int = 0
    lost: int = 0
    doubled: int = 0
    stuck: int = 0
    problems: list[str] = field(default_factory=list)


class InvariantViolation(AssertionError):
    """An invariant of the jobs does not hold; lists every violation."""

    def __init__(self, report: InvariantReport) -> None:
        super().__init__("\n".join([f"{len(report.problems)} violations:", *report.problems]))
        self.report = report


def check_invariants(deployment: ObservedDeployment, *, healthy: bool = True, outputs: bool = True) -> InvariantReport:
    """Compare everything that is known of a deployment's jobs.

    Args:
        deployment: Its API has to answer; nothing needs to have ended.
        healthy: Whether a stop had nothing in its way, and so has to have worked soon.
        outputs: Whether logs and artifacts are fetched, too.

    Raises:
        HistoryBroken: Some invariant does not hold.
    """
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while _has_leftovers(deployment) and time.monotonic() < deadline:
        time.sleep(0.05)
    history = collect_history(deployment, outputs=outputs)
    history.stop_seconds = STOP_SECONDS if healthy else None
    report = make_report(history)
    if report.problems:
        raise InvariantViolation(report)
    return report


def make_report(history: History) -> InvariantReport:
    """The violations, counted."""
    problems = find_violations(history)
    ended = {row["id"] for row in history.jobs if row["state"] in TERMINAL}
    wanted = {job_id for job_id, _ in history.accepted} | {row["id"] for row in history.jobs}
    return InvariantReport(
        jobs=len(wanted),
        lost=len(wanted - {row["id"] for row in history.jobs}),
        doubled=sum(problem.startswith(("I2 ", "I3 ")) for problem in problems),
        stuck=len(wanted - ended),
        problems=problems,
    )


# ---- Collecting


def collect_history(deployment: ObservedDeployment, *, outputs: bool = True) -> History:
    """Read all there is to know, from everywhere it can be read."""
    rows = deployment.rows(Job, Attempt, Event, GpuAllocation)
    shown = [row for row in rows[0] if row["deleted_at"] is None]
    return History(
        jobs=rows[0],
        attempts=rows[1],
        events=sorted(rows[2], key=lambda event: event["id"]),
        gpus=rows[3],
        accepted=list(deployment.accepted),
        seen_ended=dict(deployment.seen_ended),
        journals=job_journal.read_journals(deployment.home / "storage"),
        served={row["id"]: _read_served(deployment, row["id"]) for row in shown} if outputs else {},
        processes=deployment.running(),
        scratch=[_parse_attempt_name(name) for name in deployment.scratch()],
        containers=deployment.containers(),
        disclosing_routes=_find_disclosing_routes(deployment, shown[0]["id"] if shown else _UNKNOWN_JOB_ID),
        canary_leaks=_find_canary_leaks(deployment),
    )


def _parse_attempt_name(name: str) -> tuple[str, int]:
    job_id, _, attempt = name.rpartition("-")
    return job_id, int(attempt)


def _has_leftovers(deployment: ObservedDeployment) -> bool:
    """Return whether anything of an ended attempt is still there; the caller gives it a moment to go."""
    left = {*deployment.containers(), *(_parse_attempt_name(name) for name in deployment.scratch())}
    left |= {(job_id, attempt) for job_id, attempt, _ in deployment.running()}
    rows = {row["id"]: row for row in deployment.rows(Job)[0]} if left else {}
    return any(not _is_running(rows.get(job_id), attempt) for job_id, attempt in left)


def _is_running(row: dict[str, Any] | None, attempt: int) -> bool:
    return row is not None and row["state"] in OWNED and row["attempt"] == attempt


def _read_served(deployment: ObservedDeployment, job_id: str) -> ServedOutputs:
    served = ServedOutputs(raw=deployment.raw_log(job_id))
    page: dict[str, Any] = {"lines": [0]}
    while page["lines"]:
        after = served.lines[-1] if served.lines else 0
        page = deployment.request("GET", f"/jobs/{job_id}/logs?line={after}&limit=10000").json()
        served.lines += [row["line"] for row in page["lines"]]
        served.complete = page["complete"]
        if served.complete:
            break
    following: str | None = ""
    while following is not None:
        listed = deployment.request(
            "GET", f"/jobs/{job_id}/artifacts", params={"after": following} if following else {}
        )
        body = listed.json()
        served.artifacts_state = body["state"]
        for file in body["files"]:
            content = deployment.artifact(job_id, file["path"])
            served.artifacts[file["path"]] = file["sha256"], hashlib.sha256(content).hexdigest()
        following = body["next"]
    return served


def _find_disclosing_routes(deployment: ObservedDeployment, job_id: str) -> list[str]:
    """List the routes whose answer without a key, or with a wrong one, reveals whether a job exists."""
    routes = []
    for key in (None, "gj_0000000000_wrong"):
        for route in ("", "/logs", "/logs/raw", "/events", "/metrics", "/artifacts", "/artifacts.zip"):
            answers = [deployment.get_without_key(f"/jobs/{one}{route}", key) for one in (job_id, _UNKNOWN_JOB_ID)]
            plain = {
                (answer.status_code, answer.text.replace(job_id, "").replace(_UNKNOWN_JOB_ID, "")) for answer in answers
            }
            if len(plain) > 1 or {status for status, _ in plain} != {401}:
                routes.append(f"GET /jobs/ID{route}")
    return routes


def _find_canary_leaks(deployment: ObservedDeployment) -> list[str]:
    """List the places, other than a job's own specification, that contain the canary in every job's environment."""
    canary = deployment.canary
    if canary is None:
        return []
    found = [str(log.name) for log in deployment.logs if canary.encode() in log.read_bytes()]
    for mapper in Base.registry.mappers:
        for row in deployment.rows(mapper.class_)[0]:
            row.pop("spec_json", None)
            if canary in repr(row):
                found.append(f"a row of {mapper.class_.__tablename__}")
    found += ["a message"] * (canary.encode() in deployment.messages())
    listed = deployment.request("GET", "/jobs?limit=500").text
    return found + ["GET /jobs"] * (canary in listed)


# ---- Judging


def find_violations(history: History) -> list[str]:
    """Everything that does not hold, each with the invariant it breaks."""
    rows = {row["id"]: row for row in history.jobs}
    events: dict[str, list[dict[str, Any]]] = {job_id: [] for job_id in rows}
    for event in history.events:
        events.setdefault(event["job_id"], []).append(event)
    found = _check_accepted(history, rows)
    found += _check_starts(history, rows)
    for job_id, row in rows.items():
        own = events[job_id]
        found += _check_record(row, own)
        found += _check_transitions(row, own, history.seen_ended.get(job_id))
        found += _check_end(row, history)
        found += _check_stop(row, own, history.stop_seconds)
        if job_id in history.served:
            journals = {attempt: one for (owner, attempt), one in history.journals.items() if owner == job_id}
            found += _check_log(row, journals, history.served[job_id])
            found += _check_artifacts(row, journals.get(row["attempt"]), history.served[job_id])
    found += _check_leftovers(history, rows)
    found += [f"I11 {place} tells who has no key what exists" for place in history.disclosing_routes]
    return found + [f"I12 the canary is in {place}" for place in history.canary_leaks]


def _check_accepted(history: History, rows: dict[str, dict[str, Any]]) -> list[str]:
    found = [f"I1 {job_id} was accepted and is not there" for job_id, _ in history.accepted if job_id not in rows]
    keys: dict[str, set[str]] = {}
    for job_id, key in history.accepted:
        if key is not None:
            keys.setdefault(key, set()).add(job_id)
    return found + [f"I1 key {key} made {sorted(ids)}" for key, ids in keys.items() if len(ids) > 1]


def _check_record(row: dict[str, Any], events: list[dict[str, Any]]) -> list[str]:
    """I1: it waits with a reason, or a worker holds it, or it has ended, once."""
    where, found = row["id"], []
    finished = [event for event in events if event["kind"] == "finished"]
    if len(finished) != (row["state"] in TERMINAL):
        found.append(f"I1 {where} is {row['state']} and was finished {len(finished)} times")
    if row["state"] in TERMINAL and (row["finished_at"] is None or row["reason"] is None):
        found.append(f"I1 {where} is {row['state']} without time or reason")
    if row["state"] in OWNED and (row["worker"] is None or row["host"] is None or row["heartbeat_at"] is None):
        found.append(f"I1 {where} is {row['state']} and nobody holds it")
    if row["state"] is JobState.QUEUED and row["reason"] is None:
        found.append(f"I1 {where} waits without a reason")
    return found


def _check_starts(history: History, rows: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    for (job_id, attempt), one in history.journals.items():
        if len(one.starts) > 1:
            found.append(f"I2 {job_id} attempt {attempt} started {len(one.starts)} times")
        if one.overlaps:
            found.append(f"I3 {job_id} attempt {attempt} began while {one.overlaps} of the job lived")
        if job_id in rows and attempt > rows[job_id]["attempt"]:
            found.append(f"I2 {job_id} ran as attempt {attempt}, its row knows {rows[job_id]['attempt']}")
    alive: dict[str, set[int]] = {}
    for job_id, attempt, _ in history.processes:
        alive.setdefault(job_id, set()).add(attempt)
    return found + [f"I3 {job_id} runs as attempts {sorted(runs)}" for job_id, runs in alive.items() if len(runs) > 1]


def _check_transitions(row: dict[str, Any], events: list[dict[str, Any]], seen: dict[str, Any] | None) -> list[str]:
    """I4: the chain of events is one of legal moves that ends where the row is."""
    where, state, lease, found = row["id"], None, -1, []
    for event in events:
        if event["lease"] < lease:
            found.append(f"I4 {where}: {event['kind']} under lease {event['lease']} after lease {lease}")
        lease = max(lease, event["lease"])
        if state in TERMINAL and event["kind"] != "deleted":
            found.append(f"I4 {where}: {event['kind']} after it was {state}")
        if event["to_state"] is None:
            continue
        target = JobState(event["to_state"])
        source = None if event["from_state"] is None else JobState(event["from_state"])
        if source != state or (source is not None and target not in TRANSITIONS[source]):
            found.append(f"I4 {where}: moved {source} → {target} when it was {state}")
        state = target
    if state != row["state"]:
        found.append(f"I4 {where} is {row['state']}, its events end at {state}")
    # A later removal by the owner or by a policy does not change the record.
    apart = {"deleted_at", "artifacts_state", "logs_removed_at", "artifacts_removed_at"}
    changed = {name for name in seen or {} if name in row and seen and seen[name] != row[name]} - apart
    return found + ([f"I4 {where} changed after its end: {sorted(changed)}"] if changed else [])


def _check_end(row: dict[str, Any], history: History) -> list[str]:
    """I5: what the row says of its last attempt's end is what happened."""
    if row["state"] not in TERMINAL:
        return []
    where, found = row["id"], []
    reason = REASONS.get(row["reason"])
    if reason is None:
        return [f"I5 {where} ended by the unknown reason {row['reason']}"]
    one = history.journals.get((where, row["attempt"]))
    if row["exit_code"] not in _OWN_ENDS.get(row["reason"], {row["exit_code"]}):
        found.append(f"I5 {where}: {row['reason']} with exit code {row['exit_code']}")
    if one is not None and one.exit is not None and row["exit_code"] not in {None, one.exit}:
        found.append(f"I5 {where} ended with {one.exit}, its row says {row['exit_code']}")
    if one is not None and one.exit is None and row["state"] is JobState.SUCCEEDED:
        found.append(f"I5 {where} succeeded without coming to its end")
    if one is None and history.journals and row["state"] is JobState.SUCCEEDED and row["id"] in _recorded_jobs(history):
        found.append(f"I5 {where} succeeded without having started")
    wanted = row["stop_requested_at"] is not None and row["reason"] != "stopped_by_user"
    final = {reason.final, JobState.CANCELLED} if wanted else {reason.final}
    if row["state"] not in final:
        found.append(f"I5 {where} is {row['state']} by {row['reason']}")
    for attempt in history.attempts:
        last = (attempt["job_id"], attempt["attempt"]) == (where, row["attempt"])
        if last and row["state"] is not JobState.CANCELLED and attempt["exit_code"] != row["exit_code"]:
            found.append(f"I5 {where}: its attempt ended with {attempt['exit_code']}, its row with {row['exit_code']}")
    return found


def _recorded_jobs(history: History) -> set[str]:
    """Jobs whose command keeps a record of itself."""
    return {row["id"] for row in history.jobs if "$truth.starts" in row.get("spec_json", {}).get("command", "")}


def _check_log(row: dict[str, Any], journals: dict[int, JobJournal], served: ServedOutputs) -> list[str]:
    where, found = row["id"], []
    if served.lines != list(range(1, len(served.lines) + 1)):
        found.append(f"I6 {where}: its lines are not numbered without a gap")
    if row["state"] not in TERMINAL or row["logs_removed_at"] is not None:
        return found
    if not served.complete:
        found.append(f"I6 {where} has ended, its log is not complete")
    if not journals or any(one.out is None and one.digest is None for one in journals.values()):
        return found
    digests = [one.digest for one in journals.values() if one.digest]
    if digests:
        got = hashlib.sha256(served.raw).hexdigest(), len(served.raw)
        return found + [f"I6 {where} printed {digests}, stored is {got}"] * (
            LOG_GAP_PREFIX not in served.raw and [got] != digests
        )
    printed = [(journals[number].out or b"", journals[number].exit is not None) for number in sorted(journals)]
    if not log_matches(served.raw, printed):
        found.append(f"I6 {where}: its log is not what it printed: {served.raw[-400:]!r}, not {printed!r:.400}")
    return found


def log_matches(raw: bytes, printed: list[tuple[bytes, bool]]) -> bool:
    """Return whether a log is what the attempts printed, one after another.

    Args:
        raw: The log.
        printed: What each attempt recorded, and whether it came to its end. One that was killed may have printed
            a line that it could no longer record, and its shell a word about each program that was stopped under it.
    """
    if not printed:
        return raw == b""
    (out, whole), *rest = printed
    if LOG_GAP_PREFIX in raw:
        head, _, tail = raw.partition(LOG_GAP_PREFIX)
        return out.startswith(head.rstrip(b"\n")) and out.endswith(tail.partition(b"\n")[2])
    if not raw.startswith(out):
        return False
    # A shell says it of each program that SIGTERM ends under it: a loop may start another before its own end.
    raw = raw[len(out) :] if whole else raw[len(out) :].replace(b"Terminated\n", b"")
    if whole or log_matches(raw, rest):
        return log_matches(raw, rest)
    return log_matches(raw.partition(b"\n")[2], rest)


def _check_artifacts(row: dict[str, Any], one: JobJournal | None, served: ServedOutputs) -> list[str]:
    where = row["id"]
    wrong = [path for path, (listed, got) in served.artifacts.items() if listed is not None and listed != got]
    found = [f"I7 {where}: {path} is not what its manifest says" for path in wrong]
    if row["state"] not in TERMINAL or row["artifacts_state"] == "removed":
        return found
    empty = row["artifacts_state"] == "none" and not served.artifacts
    if served.artifacts_state != row["artifacts_state"] and row["artifacts_state"] != "failed" and not empty:
        found.append(f"I7 {where}: row {row['artifacts_state']}, manifest {served.artifacts_state}")
    if row["artifacts_state"] == "complete":
        found += [f"I7 {where}: {path} has no hash" for path, (listed, _) in served.artifacts.items() if listed is None]
        left = one.artifacts if one is not None and one.exit is not None else {}
        kept = {path: got for path, (_, got) in served.artifacts.items()}
        found += [f"I7 {where}: {path} was left and is not kept" for path, sha in left.items() if kept.get(path) != sha]
    return found


def _check_leftovers(history: History, rows: dict[str, dict[str, Any]]) -> list[str]:
    found, holders = [], {}
    for gpu in history.gpus:
        holder = gpu["job_id"], gpu["attempt"]
        if holders.setdefault((gpu["host"], gpu["gpu"]), holder) != holder:
            found.append(f"I8 GPU {gpu['gpu']} of {gpu['host']} is held twice")
        if not _is_running(rows.get(gpu["job_id"]), gpu["attempt"]):
            found.append(f"I8 GPU {gpu['gpu']} of {gpu['host']} is held by {gpu['job_id']}, which does not run")
    for job_id, attempt, pid in history.processes:
        if not _is_running(rows.get(job_id), attempt):
            found.append(f"I9 process {pid} of {job_id} attempt {attempt} is left")
    things = [(one, "scratch directory") for one in history.scratch]
    things += [(one, "container") for one in history.containers]
    for (job_id, attempt), what in things:
        if not _is_running(rows.get(job_id), attempt):
            found.append(f"I9 the {what} of {job_id} attempt {attempt} is left")
    return found


def _check_stop(row: dict[str, Any], events: list[dict[str, Any]], soon: float | None) -> list[str]:
    """I10: after a stop nothing is begun again, and the end comes within the job's grace and a little more."""
    wish = next((event for event in events if event["kind"] == "stop_requested"), None)
    if wish is None:
        return []
    where = row["id"]
    later = [event for event in events if event["id"] > wish["id"]]
    found = [
        f"I10 {where} was {event['kind']} after its stop" for event in later if event["kind"] in {"claimed", "requeued"}
    ]
    over: datetime | None = next((event["at"] for event in later if event["kind"] in {"ended", "finished"}), None)
    limit = None if soon is None else soon + row["spec_json"]["stop_grace"]
    if over is not None and limit is not None and (over - wish["at"]).total_seconds() > limit:
        found.append(f"I10 {where} took {(over - wish['at']).total_seconds():.1f} s to stop, at most {limit:.0f}")
    if row["state"] in TERMINAL and over is None:
        found.append(f"I10 {where} ended before its stop")
    return found
