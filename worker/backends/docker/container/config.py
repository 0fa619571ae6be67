"""The configuration of a job's container: one pure function from a LaunchSpec to the body of the create call.

Every option is set here, so that no default of an engine decides. The user controls only the image, the command, the
environment and the limits.
"""

import math
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.system.filesystem import write_atomically
from worker.backends import base
from worker.backends.base import LOGIN_PATH, WRAPPER, LaunchSpec

WRAPPER_PATH = "/.gradient/run.sh"  # path of the wrapper inside the container

LABEL_HOME = "gradient.home"
LABEL_JOB = "gradient.job"
LABEL_ATTEMPT = "gradient.attempt"

_GPU_VARIABLES = (
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "NVIDIA_REQUIRE_",
    "NVIDIA_DISABLE_REQUIRE",
    "NVIDIA_MIG_",
    "NVIDIA_IMEX_",
)
HOME, USER_NAME = "/home/gradient", "gradient"
_THREADS = "OMP_NUM_THREADS"
_HOOK_VARIABLES = (
    "LD_AUDIT",
    "LD_PRELOAD",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
)
"""Variables that would reach NVIDIA's programs, which run as root on the host to pass GPUs to containers.

They are removed from the environment of jobs with GPUs, even if the image sets them. A command may set them for its own
children.
"""
_NO_GPUS = {"NVIDIA_VISIBLE_DEVICES": "void"}
# Output goes to a file; this holds what the engine itself reports of a failed start.
_LOG_CONFIG = {"Type": "local", "Config": {"max-size": "1m", "max-file": "1", "compress": "false"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerOptions:
    """The host's choices for a container."""

    image: str
    home: str  # the service's folder on this host, which marks containers as ours
    user: str  # `UID:GID`
    network: str  # name of the engine's network, `none`, `host`, or `container:` and the name of one that has it
    pids: int
    shm_bytes: int
    memory_bytes: int | None  # memory limit if the job names none; None: no limit
    capabilities: tuple[str, ...]
    devices: tuple[str, ...] = ()
    folders: tuple[tuple[str, str], ...] = ()  # folders of the host and their paths inside, read-only
    cdi: tuple[str, ...] = ()
    layer_mb: int = 0  # MiB that the container's own files may take, if the engine can limit that; 0: no limit
    bind: str = "127.0.0.1"
    groups: tuple[str, ...] = ()
    image_variables: frozenset[str] = frozenset()
    stop_signal: int = signal.SIGTERM  # number of the signal that a stopped job's programs get first


def container_name(name: str) -> str:
    return f"gradient-{name}"


def first_container(spec: LaunchSpec) -> str | None:
    """Return the container of the node of rank 0, whose network this one joins; None: it has its own."""
    return container_name("{}-{}".format(*spec.first_node)) if spec.first_node is not None else None


def container_config(spec: LaunchSpec, options: ContainerOptions) -> dict[str, Any]:
    """Build the body of `POST /containers/create` (Engine API 1.41) for one attempt."""
    return {
        "Image": options.image,
        "Entrypoint": ["/bin/sh", WRAPPER_PATH],
        # The first of several nodes keeps its network for the others.
        "Cmd": [base.CONTROL, "first" if spec.is_first_node else "alone", *_stop_words(spec, options)],
        "StopSignal": "SIGTERM",  # the wrapper passes the image's on
        "Env": _environment(spec, options),
        "User": options.user,
        "WorkingDir": spec.working_dir or base.WORKSPACE,
        "Hostname": "",
        "Labels": {LABEL_HOME: options.home, LABEL_JOB: spec.job_id, LABEL_ATTEMPT: str(spec.attempt)},
        "ExposedPorts": {f"{port.internal}/tcp": {} for port in spec.ports},
        "Healthcheck": {"Test": ["NONE"]},
        "Tty": False,
        "OpenStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "HostConfig": _host_config(spec, options),
    }


def _stop_words(spec: LaunchSpec, options: ContainerOptions) -> list[str]:
    warning = [] if spec.warning_signal is None else [spec.warning_signal]
    return [str(int(number)) for number in (options.stop_signal, spec.job_spec.stop_grace, *warning)]


def _environment(spec: LaunchSpec, options: ContainerOptions) -> list[str]:
    # If NVIDIA's runtime is the default one, it obeys these variables, even those of an image: a job could take its
    # neighbours' GPUs. With a device request the engine sets the right one itself.
    env = {name: value for name, value in spec.env.items() if not name.startswith(_GPU_VARIABLES)}
    for name in base.CACHES.keys() & options.image_variables:  # an image may hold what its own cache is to give
        if env.get(name) == f"{base.STORAGE}/{base.CACHES[name]}":
            del env[name]
    if options.user.partition(":")[0] != "0":
        # A user that the image does not know has no writable home.
        env = {"HOME": HOME, "LOGNAME": USER_NAME, "USER": USER_NAME} | env
    # A limit of CPUs does not change their number, by which programs choose that of their threads.
    if spec.job_spec.cpus is not None and _THREADS not in options.image_variables:
        env = {_THREADS: str(math.ceil(spec.job_spec.cpus))} | env
    # With CDI the engine hands the GPUs over itself, and the runtime must add nothing.
    if not spec.gpus or options.cdi:
        env |= _NO_GPUS
    taken = _HOOK_VARIABLES if spec.gpus else ()
    # A name without a value removes the variable from the image's environment.
    return [*(f"{name}={value}" for name, value in sorted(env.items()) if name not in taken), *taken]


def _host_config(spec: LaunchSpec, options: ContainerOptions) -> dict[str, Any]:
    memory = spec.memory_bytes if spec.memory_bytes is not None else options.memory_bytes
    return {
        # The init process reaps orphans and forwards signals.
        "Init": True,
        # The start lock refuses a second start, so the engine must not try one.
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Privileged": False,
        "CapDrop": ["ALL"],
        "CapAdd": list(options.capabilities),
        "GroupAdd": list(options.groups),
        "SecurityOpt": ["no-new-privileges"],
        "ReadonlyRootfs": False,
        "StorageOpt": {"size": f"{options.layer_mb}M"} if options.layer_mb else {},
        "PidsLimit": options.pids,
        # Including swap: better a job that ends with a reason than one that swaps and is slow.
        "Memory": memory or 0,
        "MemorySwap": memory or 0,
        "NanoCpus": round(spec.job_spec.cpus * 1e9) if spec.job_spec.cpus is not None else 0,
        "ShmSize": spec.shared_mem_bytes or options.shm_bytes,
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "LogConfig": _LOG_CONFIG,
        "NetworkMode": options.network,
        "IpcMode": "private",
        "PidMode": "",
        "UTSMode": "",
        "UsernsMode": "",
        "PublishAllPorts": False,
        "PortBindings": {
            f"{port.internal}/tcp": [{"HostIp": options.bind, "HostPort": str(port.external)}] for port in spec.ports
        },
        "Devices": [_device(path) for path in options.devices],
        "DeviceRequests": _device_requests(spec.gpus, options.cdi),
        "Mounts": _mounts(spec, options),
    }


def _mounts(spec: LaunchSpec, options: ContainerOptions) -> list[dict[str, Any]]:
    return [
        _mount(spec.workspace, base.WORKSPACE),
        _mount(spec.artifacts, base.ARTIFACTS),
        _mount(spec.storage, base.STORAGE),
        _host_folder_mount(str(spec.datasets), base.DATASETS),
        _mount(spec.control, base.CONTROL),
        _mount(home_folder(spec), HOME),
        _mount(scripts_folder(spec) / WRAPPER.name, WRAPPER_PATH, read_only=True),
        # The first of its folder: what the image's own profiles add to PATH stays.
        _mount(scripts_folder(spec) / LOGIN_PATH.name, "/etc/profile.d/00-gradient.sh", read_only=True),
        *(_host_folder_mount(source, target) for source, target in options.folders),
    ]


def home_folder(spec: LaunchSpec) -> Path:
    """Return the folder behind the job's home: not its workspace, whose files are looked through at the end."""
    return spec.control.with_name("home")


def scripts_folder(spec: LaunchSpec) -> Path:
    """Return the folder of the scripts that the container mounts: below GRADIENT_HOME, which the engine's host has.

    The service's own files are not on that host where the worker itself runs in a container.
    """
    return spec.control.with_name("scripts")


def place_scripts(spec: LaunchSpec) -> None:
    folder = scripts_folder(spec)
    folder.mkdir(exist_ok=True)
    for script in (WRAPPER, LOGIN_PATH):
        write_atomically(folder / script.name, script.read_bytes(), durable=False, mode=0o755)


def _device(path: str) -> dict[str, str]:
    return {"PathOnHost": path, "PathInContainer": path, "CgroupPermissions": "rw"}


def _device_requests(gpus: tuple[str, ...], cdi: tuple[str, ...]) -> list[dict[str, Any]]:
    if not gpus:
        return []
    if cdi:
        return [{"Driver": "cdi", "DeviceIDs": list(cdi)}]
    return [{"Driver": "", "DeviceIDs": list(gpus), "Capabilities": [["gpu"]], "Options": {}}]


def _host_folder_mount(source: str, target: str) -> dict[str, Any]:
    """Mount a folder of the host read-only, without mounts inside it: those would stay writable."""
    mount = _mount(Path(source), target, read_only=True)
    return mount | {"BindOptions": {"Propagation": "rprivate", "NonRecursive": True}}


def _mount(source: Path, target: str, *, read_only: bool = False) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": str(source),
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }
