from enum import StrEnum


class JobState(StrEnum):
    """The state of a job. Each one documents who moves the job on, and what happens otherwise."""

    QUEUED = "queued"  # waits for a machine. A supervisor claims it; if none does, it stays queued, with a reason shown
    STARTING = "starting"
    """Claimed. Its worker moves it on; if the worker dies, another one adopts it or the sweep requeues it."""
    RUNNING = "running"  # the command runs. Its worker moves it on; if the worker dies, another one adopts it
    FINISHING = "finishing"
    """The command ended; outputs are being collected. If the worker dies, another one collects them again."""
    KEPT = "kept"  # it failed, its outputs are stored, and its machine stays for a while for its user to look
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


S = JobState

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    S.QUEUED: frozenset({S.STARTING, S.CANCELLED}),
    S.STARTING: frozenset({S.RUNNING, S.FINISHING, S.QUEUED, S.FAILED, S.CANCELLED}),
    S.RUNNING: frozenset({S.FINISHING, S.QUEUED, S.FAILED, S.CANCELLED}),
    S.FINISHING: frozenset({S.SUCCEEDED, S.FAILED, S.CANCELLED, S.QUEUED, S.KEPT}),
    S.KEPT: frozenset({S.FAILED}),
    S.SUCCEEDED: frozenset(),
    S.FAILED: frozenset(),
    S.CANCELLED: frozenset(),
}
"""The legal transitions."""

SOURCES: dict[JobState, frozenset[JobState]] = {
    target: frozenset(source for source, targets in TRANSITIONS.items() if target in targets) for target in JobState
}
"""The reverse of TRANSITIONS: states from which a job may enter the key. Guards the SQL updates."""

TERMINAL = frozenset(state for state, targets in TRANSITIONS.items() if not targets)  # final states

OWNED = frozenset({S.STARTING, S.RUNNING, S.FINISHING, S.KEPT})  # states in which a worker holds the job

WAITING_PHASE = "waiting"
"""Phase of a job that waits for a device of a cloud: a worker holds it, and it uses no slot and nothing of the host."""
