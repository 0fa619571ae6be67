"""The end of a job in Slurm: by its exit file, or, if there is none, by what Slurm reports."""

import time
from contextlib import suppress
from pathlib import Path

from worker.backends.base import Exit
from worker.backends.slurm.commands import Commands, SlurmError
from worker.backends.slurm.follower import query_accounting
from worker.backends.slurm.submission import OUTPUT_FILE, key_of
from worker.backends.slurm.text import SlurmJob
from worker.runner.control_files import STOPPING_FILE, read_control

_REASONS = {
    "BOOT_FAIL": "slurm_node_failed",
    "CANCELLED": "slurm_cancelled",
    "DEADLINE": "time_limit",
    "NODE_FAIL": "slurm_node_failed",
    "OUT_OF_MEMORY": "out_of_memory",
    "PREEMPTED": "preempted",
    "REVOKED": "slurm_cancelled",
    "TIMEOUT": "time_limit",
}
"""Reasons for states of Slurm that say more than an exit code."""
_LATE_SECONDS = 60.0  # after which a file that a node wrote is visible here, over NFS
_ANSWER_SECONDS = 10.0  # for Slurm to say why a command ended
_HEARTBEAT_SECONDS = 60.0
_LONGEST_LINE = 500
_SIGNALLED = 128  # exit codes from here on are those of signals


class EndedJobs:
    def __init__(self, commands: Commands) -> None:
        self._commands = commands
        self._since: dict[tuple[str, object], float] = {}

    def forget(self, name: str) -> None:
        for key in [key for key in list(self._since) if key[0] == name]:
            self._since.pop(key, None)

    def without_answer(self, name: str, control: Path, code: int | None, *, missing: bool) -> Exit | None:
        """Return the end of a job of which Slurm says no end."""
        if code is not None:
            # After a stop, other programs of the job may still be saving, until its grace period is over.
            stopping = read_control(control, STOPPING_FILE) is not None
            waits = (stopping and not missing) or self._seconds(name, "code") < _ANSWER_SECONDS
            return None if waits else Exit(code)
        if not missing:
            return None
        alive_at = modified(control / "heartbeat")
        if self._seconds(name, alive_at) < _HEARTBEAT_SECONDS:
            return None
        return self._lost(control, "Slurm no longer knows the job")

    def requeued(self, job: SlurmJob, code: int | None) -> Exit | None:
        """Return the end of a job that began, and waits again: an administrator has requeued it."""
        if self._seconds(job.name, "requeued") < _ANSWER_SECONDS:  # the last answer may be older than its start
            return None
        if code is not None and code < _SIGNALLED and self._is_forgotten(job):
            return Exit(code)
        return Exit(code, "preempted", f"Slurm job {job.id} was requeued")

    def _is_forgotten(self, job: SlurmJob) -> bool:
        """Return whether nobody has requeued a job: a controller that was killed has forgotten that it began."""
        with suppress(SlurmError):
            return " Restarts=0 " in self._commands.run("scontrol", "--oneliner", "show", "job", job.id)
        return False

    def of(self, job: SlurmJob, control: Path, code: int | None) -> Exit | None:
        """Return the end of a job that has ended for Slurm; None: its exit file may still come."""
        if code == 0 and read_control(control, STOPPING_FILE) is None:
            return Exit(0)
        if read_control(control, "requeued") is not None:
            return Exit(code, "preempted", f"Slurm job {job.id} was requeued")
        reason = _REASONS.get(job.state)
        may_come = code is None and read_control(control, "no_exit") is None
        # A killed controller starts a job anew that it has forgotten: that start fails, and the first one may live.
        alive_at = modified(control / "heartbeat") if reason is None else None
        wait_seconds = _LATE_SECONDS if reason is None else _ANSWER_SECONDS
        if may_come and self._seconds(job.name, (job.state, alive_at)) < wait_seconds:
            return None
        limit = read_control(control, "slurm_limit")
        if limit is not None and reason in {None, "time_limit"}:
            return Exit(code, "time_limit", limit)
        if reason is not None:
            return Exit(code, reason, self._detail(job, control, reason))
        return Exit(code) if code is not None else self._lost(control, f"Slurm job {job.id}, {job.state}, {job.nodes}")

    def _detail(self, job: SlurmJob, control: Path, reason: str) -> str:
        if reason == "time_limit":
            return "the Slurm cluster"
        cancelled = reason == "slurm_cancelled"
        recorded = query_accounting(self._commands, job.id, key_of(control)) if cancelled else None
        where = f" on {job.nodes}" if job.nodes else ""
        by = f" by user {recorded.ended_by}" if recorded is not None and recorded.ended_by else ""
        return f"Slurm job {job.id}{where}: {job.state}{by}"

    def _lost(self, control: Path, what: str) -> Exit:
        if read_control(control, "started") is not None:
            return Exit(None, "process_lost", what)
        output = read_control(control, OUTPUT_FILE, _LONGEST_LINE)
        return Exit(None, "launch_failed", f"{what}: the command never began{f': {output}' if output else ''}")

    def _seconds(self, name: str, what: object) -> float:
        """Return for how long this has been so; 0 at the first call."""
        now = time.monotonic()
        return now - self._since.setdefault((name, what), now)


def modified(path: Path) -> float | None:
    try:
        return path.lstat().st_mtime
    except OSError:
        return None
