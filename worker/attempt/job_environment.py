import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from core.catalogue.backends import Capabilities
from core.db.models.jobs import Job
from core.jobs.spec.job_spec import JobSpec
from worker.attempt.scratch import Scratch
from worker.backends import base
from worker.backends.base import PortForward

_MASTER_PORT = 29500  # PyTorch's own default


def _describe_commit(spec: JobSpec) -> dict[str, str]:
    """Return what is known of the commit of an uploaded folder."""
    if spec.code_commit is None:
        return {}
    return {
        "GRADIENT_GIT_COMMIT": spec.code_commit,
        "GRADIENT_GIT_BRANCH": spec.code_branch or "",
        "GRADIENT_GIT_DIRTY": "1" if spec.code_dirty else "0",
    }


def default_environment(capabilities: Capabilities) -> dict[str, str]:
    """Build the variables that those of the job replace: where its processes meet, for PyTorch.

    Jobs that share the host's network get a port each that is free now.
    """
    port = _MASTER_PORT
    if not capabilities.own_network:
        with socket.create_server(("", 0)) as listener:
            port = listener.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def service_environment(
    job: Job,
    scratch: Scratch,
    capabilities: Capabilities,
    gpus: Sequence[str],
    shared: Path,
    ports: Sequence[PortForward],
) -> dict[str, str]:
    """Build the variables of a job that reserved these GPUs and ports; its project's storage is `shared` on this host.

    In a container or sandbox it finds its folders where they are mounted; with a network of its own it listens on its
    own ports, not on the host's.
    """
    mounted = capabilities.mounts
    workspace = Path(base.WORKSPACE) if mounted else scratch.workspace
    artifacts = Path(base.ARTIFACTS) if mounted else scratch.artifacts
    storage = Path(base.STORAGE) if mounted else shared
    control = Path(base.CONTROL) if mounted else scratch.control
    return {
        "GRADIENT_JOB_ID": job.id,
        "GRADIENT_ATTEMPT": str(job.attempt),
        "GRADIENT_MACHINE_TYPE": job.machine_type,
        **_describe_commit(job.spec),
        **({"GRADIENT_GPUS": ",".join(gpus)} if gpus else {}),
        "GRADIENT_WORKSPACE_DIR": str(workspace),
        "GRADIENT_ARTIFACTS_DIR": str(artifacts),
        "GRADIENT_STORAGE_DIR": str(storage),
        "GRADIENT_METRICS_FILE": str(control / "metrics.jsonl"),
        "GRADIENT_PARAMS": json.dumps(job.spec.params),
        "PS_JOB_ID": job.id,
        "PS_JOBSPACE": str(workspace),
        "PS_MODEL_PATH": str(artifacts),
        "PS_HOSTNAME": os.uname().nodename,
        "PYTHONUNBUFFERED": "1",
        **{
            f"GRADIENT_PORT_{port.internal}": str(port.internal if capabilities.own_network else port.external)
            for port in ports
        },
    }
