"""The jobs that run while faults are injected: each kind ends in one way alone, whatever happens to the service."""

import random
from dataclasses import dataclass, field
from typing import Any

from chaos.stack import DOCKER_TYPE, PROCESS_TYPE
from support.faults.container_jobs_deployment import recorded_in_container
from support.faults.job_journal import recorded_command

_LINES = 'i=0; while [ $i -lt {count} ]; do i=$((i+1)); say "{text} $i"; sleep {pause}; done'
# Counts the starts and not the attempts: an attempt that a fault ended before its start uses up none.
_FLAKY = """
say up; sleep 0.5; leave model "weights of $GRADIENT_ATTEMPT"
starts=0; for one in "$GRADIENT_STORAGE_DIR/truth/$GRADIENT_JOB_ID"/*.starts; do starts=$((starts+1)); done
[ $starts -ge 3 ] || finish 7
"""
# Not by tee: busybox's says nothing of a full disk.
_LOUD = 'seq 24000 && seq 24000 >>"$truth.out" || echo seq >>"$truth.unsaid"'
_STUBBORN = f"trap '' TERM; {_LINES.format(count=25, text='stubborn', pause=1)}; leave model weights"


@dataclass(frozen=True)
class JobKind:
    """One kind of job.

    Attributes:
        body: What it does, for `recorded`.
        weight: How often it is drawn.
        code: Its exit code; None: whatever its end makes of it.
        reason: What it ends by.
        spec: More of its submission.
        stops: Whether it may be asked to stop.
    """

    body: str
    weight: int
    code: int | None = 0
    reason: str = "completed"
    spec: dict[str, Any] = field(default_factory=dict)
    stops: bool = True

    def command(self, machine_type: str) -> str:
        """Return the command to submit, for either backend."""
        return (recorded_in_container if machine_type == DOCKER_TYPE else recorded_command)(self.body, self.code or 0)


JOB_KINDS = {
    "steady": JobKind(_LINES.format(count=12, text="steady", pause=1) + "; leave model weights; leave note small", 24),
    "short": JobKind("say done; leave model weights", 22),
    "flaky": JobKind(_FLAKY, 12, spec={"maxAttempts": 3}),
    "stubborn": JobKind(_STUBBORN, 8, spec={"stopGrace": 3}),
    "loud": JobKind(_LOUD, 8, stops=False),
    "fail": JobKind("say doomed; leave model weights", 8, code=42, reason="exit_nonzero"),
    "forker": JobKind("(setsid sleep 600 &); (sleep 600 &); say forked; sleep 1", 6),
    "time limit": JobKind("say up; sleep 600", 5, None, "time_limit", {"timeLimit": 4, "stopGrace": 1}, stops=False),
    "self-kill": JobKind("say up; kill -9 $$", 4, 137, "killed", stops=False),
    "canary": JobKind("say done", 0, spec={"priority": 100}, stops=False),
}


@dataclass
class AcceptedJob:
    """A job, as the client that submitted it remembers it."""

    job_id: str
    kind: str
    machine_type: str
    stop_requested: bool = False
    deleted: bool = False

    @property
    def expected(self) -> JobKind:
        return JOB_KINDS[self.kind]


def draw_job(chance: random.Random) -> tuple[str, str]:
    """A kind of job, and the machine type to run it on."""
    kind = chance.choices(list(JOB_KINDS), [one.weight for one in JOB_KINDS.values()])[0]
    return kind, chance.choice((PROCESS_TYPE, PROCESS_TYPE, DOCKER_TYPE))
