"""JobState, and the legal moves between states."""

from enum import StrEnum


class JobState(StrEnum):
    """Where a job is. Who moves it out, and what happens if nobody does, stands at each state."""

    QUEUED = "queued"
    """Waits for a machine. A supervisor claims it; nobody: it stays, with a reason shown."""
    STARTING = "starting"
    """Claimed. Its worker moves it on; if the worker dies, another adopts it or the sweep requeues it."""
    RUNNING = "running"
    """The command runs. Its worker moves it on; if the worker dies, another one adopts it."""
    FINISHING = "finishing"
    """The command ended; outputs are completed. If the worker dies, another collects again."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


S = JobState

MOVES: dict[JobState, frozenset[JobState]] = {
    S.QUEUED: frozenset({S.STARTING, S.CANCELLED}),
    S.STARTING: frozenset({S.RUNNING, S.FINISHING, S.QUEUED, S.FAILED, S.CANCELLED}),
    S.RUNNING: frozenset({S.FINISHING, S.QUEUED, S.FAILED, S.CANCELLED}),
    S.FINISHING: frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.QUEUED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
"""The only list of legal moves."""

SOURCES: dict[JobState, frozenset[JobState]] = {
    target: frozenset(source for source, targets in MOVES.items() if target in targets) for target in JobState
}
"""The computed reverse of MOVES: which states a job may be in to enter the key. The SQL guard."""

TERMINAL = frozenset(state for state, targets in MOVES.items() if not targets)
"""States that nothing leaves."""

OWNED = frozenset({S.STARTING, S.RUNNING, S.FINISHING})
"""States in which a worker holds the job."""
