import os
import shutil
from collections.abc import Iterator, Sequence
from typing import Any

from core.settings import Settings
from gradient_server.checks.engine_access import EngineProblem, query_engine
from gradient_server.checks.finding import Finding, ok, problem, warning
from worker.backends.base import LaunchError
from worker.backends.docker.gpu import device_requests, nvml
from worker.backends.docker.gpu.nvml import GpuSample


def check(settings: Settings) -> Iterator[Finding]:
    """Check everything about the engine; nothing if machines are simulated."""
    if settings.machines.simulate:
        return
    info = query_engine(settings.docker)
    if isinstance(info, EngineProblem):
        yield warning(
            "docker",
            f"No worker can run jobs here: {info.why}.",
            f"{info.fix} A machine that runs only the API needs no engine.",
        )
        return
    yield live_restore(info)
    yield isolation(settings, info)
    yield firewall(settings)
    yield gpus(nvml.read_gpus().samples, info)


def live_restore(info: dict[str, Any]) -> Finding:
    """Check that jobs survive a restart of the engine. `info`: the engine's own description (`docker info`)."""
    version = info.get("ServerVersion", "of unknown version")
    if info.get("LiveRestoreEnabled"):
        return ok("docker", f"Docker {version} answers; jobs keep running while it restarts.")
    return problem(
        "docker",
        f"Docker {version} answers, but restarting it ends every job on this machine.",
        'Put {"live-restore": true} into /etc/docker/daemon.json, then `systemctl reload docker`.',
    )


def isolation(settings: Settings, info: dict[str, Any]) -> Finding:
    """Check the isolation of jobs from this machine: their user, seccomp, AppArmor or SELinux.

    `info`: the engine's own description (`docker info`).
    """
    options = [
        dict(part.partition("=")[::2] for part in option.split(",")) for option in info.get("SecurityOptions") or ()
    ]
    has = {option.get("name", ""): option for option in options}
    if settings.docker.user is not None and "0" in settings.docker.user.split(":"):
        return problem(
            "isolation",
            f"Jobs run as root of this machine: GRADIENT_DOCKER__USER is {settings.docker.user}.",
            "Unset it: a worker that runs as root then uses a separate user for every project.",
        )
    if has.get("seccomp", {}).get("profile") in {None, "unconfined"}:
        return problem(
            "isolation",
            "The engine does not filter system calls (seccomp): jobs can reach the whole kernel.",
            "Remove seccomp-profile from /etc/docker/daemon.json, and use a kernel with seccomp.",
        )
    if "userns" in has:
        return warning(
            "isolation",
            "The engine maps users (userns-remap): folders mounted into jobs belong to users outside the map.",
            "Remove userns-remap from /etc/docker/daemon.json; every project already has its own user.",
        )
    if not has.keys() & {"apparmor", "selinux"}:
        return warning(
            "isolation",
            "Containers are confined by seccomp, users and dropped capabilities, but not by AppArmor or SELinux.",
            "Install the package `apparmor`, and restart Docker.",
        )
    return ok(
        "isolation",
        "Jobs are not root and are confined by seccomp and by AppArmor or SELinux. User namespaces are not used.",
    )


def firewall(settings: Settings) -> Finding:
    """Check that firewall rules keep jobs from this host, from metadata addresses and from the service."""
    docker = settings.docker
    if docker.network == "none":
        return ok("firewall", "Jobs have no network.")
    reach = "Jobs can reach this host, metadata addresses and the service's database"
    if docker.firewall == "off":
        return warning(
            "firewall",
            f"{reach}, unless rules are set elsewhere: GRADIENT_DOCKER__FIREWALL is off.",
            "Set it to require with a worker that runs as root, or make sure that the rules are set at boot.",
        )
    if docker.firewall_image is None and (
        os.getuid() != 0
        or shutil.which("iptables", path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") is None
    ):
        why = (
            "iptables is not installed"
            if os.getuid() == 0
            else "this user is not root, so its workers cannot set rules"
        )
        return warning(
            "firewall",
            f"{reach if docker.firewall == 'try' else 'No job can start'}: {why}.",
            "Run the worker as root with iptables, name an image that has it (GRADIENT_DOCKER__FIREWALL_IMAGE), or set "
            "the rules at boot and GRADIENT_DOCKER__FIREWALL=off.",
        )
    return ok(
        "firewall", "The worker sets the rules when the first job starts: for IPv4, and for IPv6 if this host has it."
    )


def gpus(samples: Sequence[GpuSample], info: dict[str, Any]) -> Finding:
    """Check that containers can use this machine's GPUs. `info`: the engine's own description (`docker info`)."""
    if not samples:
        return ok("gpus", "This machine has no NVIDIA GPU: CPU types run, GPU types do not.")
    first, indices = samples[0].gpu, [sample.gpu.index for sample in samples]
    models = ", ".join(dict.fromkeys(sample.gpu.name for sample in samples))
    count = f"{len(samples)} NVIDIA GPU{'s' * (len(samples) != 1)} ({models}; driver {first.driver})"
    try:
        device_requests.check_supported(indices, info)
    except LaunchError as error:
        return problem(
            "gpus",
            f"{count}, but no job gets one: {error.detail}.",
            "Install NVIDIA's Container Toolkit, run `nvidia-ctk runtime configure --runtime=docker`, restart Docker.",
        )
    return ok("gpus", f"{count}, and Docker can pass them to jobs.")
