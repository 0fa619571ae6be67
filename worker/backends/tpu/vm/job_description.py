from dataclasses import asdict
from pathlib import PurePosixPath

from core.jobs.spec.data_disks import parse_data_disks
from worker.backends.base import ARTIFACTS, CONTROL, STORAGE, WORKSPACE, LaunchSpec

DISKS = "/disks"  # path of a job's data disks, each in a folder of its name

VM_FOLDERS = {
    "GRADIENT_WORKSPACE_DIR": WORKSPACE,
    "GRADIENT_ARTIFACTS_DIR": ARTIFACTS,
    "GRADIENT_STORAGE_DIR": STORAGE,
    "GRADIENT_METRICS_FILE": f"{CONTROL}/metrics.jsonl",
    "PS_JOBSPACE": WORKSPACE,
    "PS_MODEL_PATH": ARTIFACTS,
}
"""The folders of a job on its VM, in place of those that it would have here."""


def describe_job(spec: LaunchSpec, image: str, env: dict[str, str], shm_bytes: int) -> dict[str, object]:
    """Describe the job for the VM.

    `python` has the variables of the job's virtual environment; only a simulated VM, which is on this host, uses them.
    """
    login = spec.login(image)
    disks = parse_data_disks(spec.job_spec.data_disks)
    env = env | ({"GRADIENT_DISKS_DIR": DISKS} if disks else {})
    limits = {
        "cpus": spec.job_spec.cpus,
        "memory": spec.memory_bytes,
        "shm-size": spec.shared_mem_bytes or shm_bytes,
        "user": spec.job_spec.user,
    }
    within = None
    if spec.working_dir is not None:
        request = PurePosixPath(spec.working_dir)
        root = next((folder for folder in (WORKSPACE, str(spec.workspace)) if request.is_relative_to(folder)), None)
        within = str(request.relative_to(root)) if root is not None else None
    return {
        "command": spec.job_spec.command,
        "image": image,
        "env": env,
        "python": spec.python.environment() if spec.python is not None else {},
        "pull": spec.job_spec.image_pull_policy,
        "login": None
        if login is None
        else {"host": login.host, "username": login.username, "password": login.password},
        "options": [f"--{name}={value}" for name, value in limits.items() if value is not None],
        "working_dir": spec.working_dir if within is None else f"{WORKSPACE}/{within}",
        "folder": within,
        "disks": [asdict(disk) for disk in disks],
        "stop_grace": spec.job_spec.stop_grace,
        "stop_signal": spec.job_spec.stop_signal,
        "warning": spec.warning_signal,
    }
