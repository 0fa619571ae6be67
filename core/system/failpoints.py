"""Named places where a test can kill this process, to prove that nothing is lost there.

`failpoint("claimed")` does nothing unless GRADIENT_FAILPOINT names it; then the process is killed at once,
without cleanup. `claimed:stop` freezes it instead (SIGSTOP), so that it wakes up with an expired lease.
"""

import os
import signal
import threading

FAILPOINTS: dict[str, str] = {
    "submit_before_commit": "the job is written but not committed",
    "submit_after_commit": "the job is committed, the client has no answer",
    "claimed": "the job is claimed, nothing is prepared",
    "prepared": "the workspace is filled, nothing is created",
    "created": "the attempt is created under its name, the lease is not checked again",
    "confirmed": "the lease is confirmed, the command is not started",
    "launched": "the command is started, its handle is not stored",
    "running": "the handle is stored",
    "stop_suspended": "the job's processes are suspended, and not asked to end yet",
    "exited": "the command's end is seen, not recorded",
    "finishing": "the end is recorded, nothing is torn down",
    "destroyed": "the processes are gone, outputs are not completed",
    "collected": "the outputs are completed, the record is not closed",
    "finished": "the record is closed, the scratch directory is still there",
    "notify_sent": "a receiver of notifications has a message, what it answered is not recorded",
}
"""All failpoints, and the state at each of them; a test kills the process at each."""

ATTEMPT_FAILPOINTS = [name for name in FAILPOINTS if not name.startswith(("submit_", "stop_", "notify_"))]
"""Those that each attempt on the worker's own host passes, in order."""

_SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def failpoint(name: str) -> None:
    """Kill or freeze this process if GRADIENT_FAILPOINT names this failpoint."""
    FAILPOINTS[name]
    wanted, _, how = os.environ.get("GRADIENT_FAILPOINT", "").partition(":")
    if wanted == name:
        # To this thread: a signal to the process may stop another thread first, and this one would run on meanwhile.
        signal.pthread_kill(threading.get_ident(), _SIGNALS[how or "kill"])
