"""Jobs, machine types and projects in the original clients' JSON format."""

from collections.abc import Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from core.catalogue.machine_types import MachineType
from core.db.models.jobs import Job, Project
from core.formatting import iso_time
from core.jobs.spec.container import WORKSPACE
from core.jobs.states import JobState
from service.deps import OpenStores
from service.presenters.jobs import job_views
from service.schemas.jobs import JobView
from service.submission.create import Submitted

CLUSTER_ID = "clgradientjobs"
CLUSTER = "Gradient Jobs"
REGION = "local"
"""The only region: this service is one cluster, wherever its workers are."""

PREEMPTED = "Preempted"
_PREEMPTION = "preempted"
_TAKEN_DOWN = frozenset({"Failed", "Error", PREEMPTED})

# Fields without a counterpart here, kept for clients that print whole jobs.
_NONE = (
    "baseContainer",
    "baseContainerUrl",
    "cpuCount",
    "cpuFlags",
    "cpuHostname",
    "cpuMem",
    "cpuModel",
    "customMetrics",
    "dtDeleted",
    "experimentId",
    "fqdn",
    "gpuDevice",
    "gpuSerial",
    "metricsURL",
    "targetNodeAttrs",
    "tpuDatasetDir",
    "tpuModelDir",
    "tpuTFVersion",
)
_FALSE = ("isPreemptible", "isPublic", "pushOnCompletion", "runTillCancelled")


def state_of(job: Job, view: JobView) -> str:
    """Return the state's name: that of the main API, with a separate one for a preempted machine."""
    taken = job.state is JobState.FAILED and job.reason == _PREEMPTION
    return PREEMPTED if taken else view.state


def job_shapes(session: Session, stores: OpenStores, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Convert jobs to the original format."""
    return [_shape(job, view) for job, view in zip(jobs, job_views(session, stores, jobs), strict=True)]


def job_shape(session: Session, stores: OpenStores, job: Job) -> dict[str, Any]:
    """Convert one job to the original format."""
    return job_shapes(session, stores, [job])[0]


def submitted_shape(submitted: Submitted) -> dict[str, Any]:
    """Convert a submitted job to the original format, without its place in the queue."""
    return _shape(submitted.job, submitted.view)


def _shape(job: Job, view: JobView) -> dict[str, Any]:
    spec, state = job.spec, state_of(job, view)
    uploaded = spec.workspace_sha256 is not None
    return {
        **dict.fromkeys(_NONE),
        **dict.fromkeys(_FALSE, False),
        **_times(job),
        "id": job.id,
        "name": view.name,
        "state": state,
        "jobError": view.message if state in _TAKEN_DOWN else None,
        "exitCode": view.exit_code,
        "project": view.project,
        "projectId": view.project_id,
        "entrypoint": spec.command,
        "container": spec.container,
        "containerUrl": spec.container,
        "containerUser": spec.user,
        "workspaceUrl": spec.redacted_workspace() or ("workspace.zip" if uploaded else None),
        "workingDirectory": str(PurePosixPath(WORKSPACE, spec.working_dir or "")),
        "artifactsDirectory": "/artifacts",
        "hasCode": uploaded or spec.workspace is not None,
        "codeUploaded": uploaded,
        "codeCommit": spec.code_commit,
        "jobEnv": spec.redacted_env(),
        "newImageName": spec.registry_target,
        **_machine(job, view),
        **_reached(view),
        "startedByUserId": job.submitted_by,
        "parentJobId": job.parent_id,
        "queuePosition": view.queue_position,
        "seqNum": job.seq,
        "shutdownTimeout": spec.stop_grace,
        "tags": list(spec.tags),
    }


def _machine(job: Job, view: JobView) -> dict[str, Any]:
    return {
        "machineType": view.machine_type,
        "usageRate": f"{view.machine_type} hourly",
        "cluster": CLUSTER,
        "clusterId": CLUSTER_ID,
        "clusterMachine": job.host,
        "storageRegion": REGION,
        "sharedMemMBytes": job.spec.shared_mem_mb,
        "gpuName": view.gpu_name,
        "gpuMem": view.gpu_mem,
        "gpuDriver": view.gpu_driver,
        "gpuCount": view.gpu_count,
        "tpuName": view.tpu.name if view.tpu else None,
        "tpuType": view.tpu.type if view.tpu else None,
        "tpuGrpcUrl": view.tpu.grpc_url if view.tpu else None,
    }


def _reached(view: JobView) -> dict[str, str | None]:
    """Build the ports and the IP address, from which clients print links."""
    urls = [port.url for port in view.ports if port.url is not None]
    pairs = [f"{port.external}:{port.internal}" for port in view.ports if port.url is not None]
    return {"ports": ",".join(pairs) or None, "ipAddress": urlsplit(urls[0]).hostname if urls else None}


def _times(job: Job) -> dict[str, str | None]:
    # While a job is queued again, `ended_at` belongs to its earlier attempt.
    over = job.ended_at if job.state is not JobState.QUEUED else None
    known = [job.created_at, job.claimed_at, job.started_at, job.ended_at, job.finished_at]
    return {
        "dtCreated": iso_time(job.created_at),
        "dtModified": iso_time(max(at for at in known if at is not None)),
        "dtProvisioningStarted": _iso(job.claimed_at),
        "dtProvisioningFinished": _iso(job.started_at),
        "dtStarted": _iso(job.started_at),
        "dtTeardownStarted": _iso(over),
        "dtFinished": _iso(job.finished_at),
        "dtTeardownFinished": _iso(job.finished_at),
    }


def _iso(at: datetime | None) -> str | None:
    return None if at is None else iso_time(at)


def vm_type_shape(machine: MachineType) -> dict[str, Any]:
    """Convert a machine type to the original format, with the fields that clients tabulate."""
    gpus = machine.kind != "cpu"
    memory = round(machine.memory_gb * 10**9)
    return {
        "clusters": [{"id": CLUSTER_ID}],
        "vmType": {
            "label": machine.name,
            "kind": machine.accelerator,
            "cpus": machine.cpus,
            "ram": None if gpus else memory,
            "gpuCount": machine.count if gpus else 0,
            "gpuModel": {
                "label": machine.accelerator if gpus else "None",
                "model": machine.accelerator if gpus else "None",
                "memInBytes": memory if gpus else 0,
            },
        },
    }


def project_shape(project: Project) -> dict[str, Any]:
    """Convert a project to the original format."""
    return {
        "handle": project.id,
        "name": project.name,
        "repoName": project.repo_name,
        "repoUrl": project.repo_url,
        "dtCreated": iso_time(project.created_at),
        "dtDeleted": None,
        "tags": project.tags or [],
    }
