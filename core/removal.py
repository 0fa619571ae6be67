"""Deletes a job's artifacts on request."""

from collections.abc import Callable

from core import retention
from core.errors import SpecInvalid
from core.jobs.models import Job
from core.jobs.moves import note_attempt
from core.prune import Kept
from core.retention import Kind


def remove_artifacts(kept: Kept, job: Job, meant: Callable[[str], bool] | None) -> None:
    """Delete artifacts of a job that has ended.

    Args:
        kept: The open stores.
        job: The job.
        meant: Returns by public path whether to delete a file of the latest attempt; None: all of every attempt.

    Raises:
        SpecInvalid: The job has not ended and would write them again.
        OSError: The store cannot be written.
    """
    if not job.ended:
        raise SpecInvalid("The job is not over, and would leave its artifacts again. Stop it first.", field="jobId")
    if meant is not None:
        kept.artifacts.discard(job.id, job.attempt, meant)
        left = kept.artifacts.list(job.id, job.attempt, limit=0).total_bytes
        with kept.database.write() as session:
            note_attempt(session, job, artifact_bytes=left)
        return
    with kept.database.write() as session:
        retention.expire(session, Kind.ARTIFACTS, [job.id], "somebody asked for it", left=[job.id])
    # Committed. If this process dies here, the next pruning finds the files by `removals`.
    kept.artifacts.remove(job.id)
    with kept.database.write() as session:
        retention.done(session, [(job.id, Kind.ARTIFACTS)])
