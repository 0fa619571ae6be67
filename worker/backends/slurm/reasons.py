"""The reasons of jobs that wait in Slurm's queue, as sentences."""

import re
from datetime import datetime, timedelta

from core.formatting import format_moment
from worker.backends.slurm.text import SlurmJob

_SENTENCES = {
    "": "Slurm has not planned the job yet",
    "AccountNotAllowed": "The job's account may not use the partition{partition}",
    "AccountingPolicy": "A limit of the job's account or QOS is reached",
    "BadConstraints": "No node has what the job requests: change its machine type's options",
    "BeginTime": "The job may not begin before its start time",
    "Cleaning": "Slurm is still cleaning up after the job's previous start",
    "Dependency": "A job that it depends on has not ended",
    "DependencyNeverSatisfied": "It depends on a job that did not end as it requires, so it can never start: stop it",
    "InvalidAccount": "Slurm does not accept the job's account: change its machine type's account",
    "InvalidQOS": "Slurm does not accept the job's QOS: change its machine type's QOS",
    "JobArrayTaskLimit": "As many members of its array run as may run at once",
    "JobHeldAdmin": "An administrator of the cluster holds the job",
    "JobHeldUser": "The job is held. `scontrol release {id}` lets it start",
    "Licenses": "The job waits for a license",
    "NodeDown": "A node that the job requires is down",
    "PartitionConfig": "The job requests more than the partition{partition} allows",
    "PartitionDown": "The partition{partition} is closed. Only an administrator of the cluster can open it",
    "PartitionInactive": "The partition{partition} starts no jobs at the moment",
    "PartitionNodeLimit": "The partition{partition} does not have or allow as many nodes as the job requests",
    "PartitionTimeLimit": "The job requests more time than the partition{partition} allows: set a shorter time limit",
    "Priority": "Jobs with a higher priority are ahead of it",
    "Prolog": "Slurm is preparing the job's nodes",
    "QOSNotAllowed": "The job's QOS may not be used with its account or in the partition{partition}",
    "QOSUsageThreshold": "The use of the cluster is below what the job's QOS requires, or above what it allows",
    "ReqNodeNotAvail": "A node that the job requires is not available",
    "Reservation": "The job's reservation has not begun, or has no nodes free",
    "ReservationDeleted": "The job's reservation has been deleted: change its machine type's reservation",
    "Resources": "The job is next, and waits for nodes to be free",
    "SystemFailure": "Slurm, a file system or the network of the cluster has failed",
}
_HOLDERS = {
    "AssocGrp": "The account as a whole",
    **dict.fromkeys(("AssocMax", "Association", "Max"), "The job's account"),
    "QOSGrp": "The job's QOS as a whole",
    **dict.fromkeys(("QOSMax", "QOSMin", "QOS"), "The job's QOS"),
}
"""Whose limit it is, by how the reason begins."""
_RESOURCES = {
    "BB": "burst buffers",
    "Billing": "billing units",
    "CPU": "CPUs",
    "Energy": "energy",
    "GRES": "GPUs",
    "Job": "running jobs",
    "License": "licenses",
    "Mem": "memory",
    "Node": "nodes",
    "Resource": "resources",
    "Submit": "jobs",
    "Time": "time",
    "Unknown": "other resources",
    "Wall": "time",
}
_LIMIT = re.compile(
    rf"(?P<holder>{'|'.join(_HOLDERS)})(?P<resource>(?i:{'|'.join(_RESOURCES)}))(?:s|ory|Jobs?|Duration)?"
    r"(?P<minutes>Minutes|RunMinutes)?(?P<by>Per(?:Job|Node|User|Account))?(?:Limit|NotSatisfied)?"
)
_BY = {"PerJob": " in one job", "PerNode": " on one node", "PerUser": " for one user"}


def waiting_sentence(job: SlurmJob) -> str:
    """Return why a job waits, with Slurm's own word for it, and when it may start if Slurm has planned that."""
    word, _, detail = (part.strip() for part in job.reason.partition(","))
    sentence = _SENTENCES.get(word) or _limit_sentence(word)
    if sentence is None:
        return f"Slurm says why the job waits: {job.reason}.{_estimate(job)}"
    sentence = sentence.replace("{id}", job.id).replace("{partition}", f" {job.partition!r}" if job.partition else "")
    quoted = f" ({word}{f': {detail}' if detail else ''})" if word else ""
    return f"{sentence}{quoted}.{'' if word.startswith('JobHeld') else _estimate(job)}"


def _limit_sentence(word: str) -> str | None:
    match = _LIMIT.fullmatch(word)
    if match is None:
        return None
    holder, resource = _HOLDERS[match["holder"]], match["resource"]
    resource = next(name for key, name in _RESOURCES.items() if key.lower() == resource.lower())
    if match["minutes"]:
        resource = f"{resource.removesuffix('s')} minutes"
    resource += _BY.get(match["by"] or "", "")
    if match["holder"] == "QOSMin":
        return f"{holder} requires that a job requests more {resource}"
    if match["by"] in {"PerJob", "PerNode"}:
        return f"The job requests more {resource} than its {holder.rpartition(' ')[2]} allows: request less"
    return f"{holder} has reached its limit of {resource}"


def _estimate(job: SlurmJob) -> str:
    try:
        starts_at = datetime.fromisoformat(job.start).astimezone()  # Slurm's commands print the local time
    except ValueError:
        return ""
    # To the minute: Slurm changes it all the time, and each change is written to the job.
    return f" Slurm expects it to start at {format_moment(starts_at + timedelta(seconds=-starts_at.second % 60))}."
