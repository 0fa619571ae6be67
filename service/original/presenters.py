from collections.abc import Sequence
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from sqlalchemy.orm import Session

from core.catalogue.machine_types import MachineType
from core.db.models.jobs import Job, Project
from core.formatting import iso_time
from core.jobs.spec.container_options import WORKSPACE
from core.jobs.states import JobState
from service.app_state import AppState
from service.presenters.jobs import job_views
from service.schemas.jobs import JobView
from service.submission.create import present
from service.submission.stages import InsertedJob

CLUSTER_ID = "clgradientjobs"
CLUSTER = "Gradient Jobs"
REGION = "local"  # the only region: this service is one cluster, wherever its workers are

PREEMPTED = "Preempted"
_PREEMPTION = "preempted"
_ERROR_STATES = frozenset({"Failed", "Error", PREEMPTED})

# Fields without a counterpart here, kept for clients that print whole jobs.
_NULL_FIELDS = (
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
_FALSE_FIELDS = ("isPreemptible", "isPublic", "pushOnCompletion", "runTillCancelled")


def original_state(job: Job, view: JobView) -> str:
    """Return the state's name: that of the main API, with a separate one for a preempted machine."""
    taken = job.state is JobState.FAILED and job.reason == _PREEMPTION
    return PREEMPTED if taken else view.state


def job_shapes(session: Session, app_state: AppState, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    return [_job_shape(job, view) for job, view in zip(jobs, job_views(session, app_state, jobs), strict=True)]


def job_shape(session: Session, app_state: AppState, job: Job) -> dict[str, Any]:
    return job_shapes(session, app_state, [job])[0]


def submitted_shape(app_state: AppState, submitted: InsertedJob) -> dict[str, Any]:
    """Convert a submitted job to the original format, without its place in the queue."""
    return _job_shape(submitted.job, present(app_state, submitted))


def _job_shape(job: Job, view: JobView) -> dict[str, Any]:
    spec, state = job.spec, original_state(job, view)
    uploaded = spec.workspace_sha256 is not None
    return {
        **dict.fromkeys(_NULL_FIELDS),
        **dict.fromkeys(_FALSE_FIELDS, False),
        **_time_fields(job),
        "id": job.id,
        "name": view.name,
        "state": state,
        "jobError": view.message if state in _ERROR_STATES else None,
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
        **_machine_fields(job, view),
        **_port_fields(view),
        "startedByUserId": job.submitted_by,
        "parentJobId": job.parent_id,
        "queuePosition": view.queue_position,
        "seqNum": job.seq,
        "shutdownTimeout": spec.stop_grace,
        "tags": list(spec.tags),
    }


def _machine_fields(job: Job, view: JobView) -> dict[str, Any]:
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


def _port_fields(view: JobView) -> dict[str, str | None]:
    """Build the ports and the IP address, from which clients print links."""
    urls = [port.url for port in view.ports if port.url is not None]
    pairs = [f"{port.external}:{port.internal}" for port in view.ports if port.url is not None]
    return {"ports": ",".join(pairs) or None, "ipAddress": urlsplit(urls[0]).hostname if urls else None}


def _time_fields(job: Job) -> dict[str, str | None]:
    # While a job is queued again, `ended_at` belongs to its earlier attempt.
    over = job.ended_at if job.state is not JobState.QUEUED else None
    times = [job.created_at, job.claimed_at, job.started_at, job.ended_at, job.finished_at]
    return {
        "dtCreated": iso_time(job.created_at),
        "dtModified": iso_time(max(at for at in times if at is not None)),
        "dtProvisioningStarted": _optional_iso_time(job.claimed_at),
        "dtProvisioningFinished": _optional_iso_time(job.started_at),
        "dtStarted": _optional_iso_time(job.started_at),
        "dtTeardownStarted": _optional_iso_time(over),
        "dtFinished": _optional_iso_time(job.finished_at),
        "dtTeardownFinished": _optional_iso_time(job.finished_at),
    }


def _optional_iso_time(at: datetime | None) -> str | None:
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
    return {
        "handle": project.id,
        "name": project.name,
        "repoName": project.repo_name,
        "repoUrl": project.repo_url,
        "dtCreated": iso_time(project.created_at),
        "dtDeleted": None,
        "tags": project.tags or [],
    }
