"""Extra privileges that an administrator grants to containers of a machine type.

They are the table `[NAME.docker]` in the file that GRADIENT_MACHINES__FILE names. Privileges that would give control
of the host (all privileges, the container engine's socket, raw disks) are always refused.
"""

import re
from pathlib import PurePosixPath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

_CAPABILITIES = re.compile(
    "AUDIT_(CONTROL|READ|WRITE)|BLOCK_SUSPEND|CHECKPOINT_RESTORE|CHOWN|DAC_OVERRIDE|FOWNER|FSETID|IPC_(LOCK|OWNER)|KILL|"
    "LEASE|LINUX_IMMUTABLE|NET_(ADMIN|BIND_SERVICE|BROADCAST|RAW)|PERFMON|SET(FCAP|GID|PCAP|UID)|SYSLOG|"
    "SYS_(CHROOT|NICE|PACCT|PTRACE|RESOURCE|TIME|TTY_CONFIG)|WAKE_ALARM"
)
_ESCAPE_CAPABILITIES = re.compile("ALL|BPF|DAC_READ_SEARCH|MAC_(ADMIN|OVERRIDE)|MKNOD|SYS_(ADMIN|BOOT|MODULE|RAWIO)")

_BLOCK_DEVICES = re.compile(
    r"/dev/(?:(?:[shv]d|xvd)[a-z]|(?:nvme|mmcblk|dm-|md|loop|sr)\d|(?:mapper|disk)/|(?:mem|kmem|port|kmsg|core)\Z)"
)
_FORBIDDEN_SOURCES = (
    "/proc",
    "/sys",
    "/dev",
    "/boot",
    "/etc",
    "/root",
    "/run",
    "/var/run",
    "/var/lib/docker",
    "/var/lib/containerd",
)
_RESERVED_TARGETS = ("/paperspace", "/artifacts", "/storage", "/.gradient", "/proc", "/sys", "/dev")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}\Z")
_MAX_PIDS = 4_194_304  # the kernel's own limit on 64 bits
_FORBIDDEN_FIELDS = {
    "privileged": "jobs are never privileged; list the capabilities and devices that they need",
    "security_opt": "every job runs with no-new-privileges and the default seccomp profile",
    "runtime": "every job runs with the engine's default runtime",
}


def paths_overlap(path: str, other: str) -> bool:
    """Check whether two absolute paths are equal or one contains the other."""
    first, two = PurePosixPath(path), PurePosixPath(other)
    return first.is_relative_to(two) or two.is_relative_to(first)


def _absolute(path: str) -> str:
    pure = PurePosixPath(path)
    if not path.startswith("/") or ".." in pure.parts or not path.isprintable() or ":" in path:
        raise ValueError(f"{path!r} must be an absolute path without '..' or ':'")
    return str(pure)


AbsolutePath = Annotated[str, AfterValidator(_absolute)]


class ContainerPolicy(BaseModel):
    """Extra privileges of the containers of one machine type; none by default."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    capabilities: tuple[str, ...] = Field((), description="Linux capabilities that jobs keep, without CAP_")
    devices: tuple[AbsolutePath, ...] = Field((), description="devices of the host, for reading and writing")
    mounts: dict[AbsolutePath, AbsolutePath] = Field(
        {}, description="folders of the host → path in the container, read-only"
    )
    network: str | None = Field(None, description="name of an engine network, host or none; default: the jobs' network")
    pids: int | None = Field(None, ge=16, le=_MAX_PIDS, description="maximum processes and threads")
    root: bool = Field(default=False, description="let jobs run as the user root")

    @model_validator(mode="before")
    @classmethod
    def _reject_forbidden(cls, given: Any) -> Any:  # noqa: ANN401 - what the file holds
        for name in given if isinstance(given, dict) else ():
            if name in _FORBIDDEN_FIELDS:
                raise ValueError(f"{name!r} is not allowed: {_FORBIDDEN_FIELDS[name]}")
        return given

    @field_validator("capabilities")
    @classmethod
    def _check_capabilities(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        plain = tuple(name.upper().removeprefix("CAP_") for name in names)
        for name in plain:
            if _ESCAPE_CAPABILITIES.fullmatch(name):
                raise ValueError(f"{name} lets a container control the host, and is never granted")
            if not _CAPABILITIES.fullmatch(name):
                raise ValueError(f"{name!r} is not a Linux capability; capabilities(7) lists them")
        return plain

    @field_validator("devices")
    @classmethod
    def _reject_block_devices(cls, paths: tuple[str, ...]) -> tuple[str, ...]:
        for path in paths:
            if not path.startswith("/dev/"):
                raise ValueError(f"{path!r} is not a device; name a path under /dev")
            if path.startswith("/dev/nvidia"):
                raise ValueError(f"{path!r} is a GPU; the service itself allocates GPUs to jobs")
            if _BLOCK_DEVICES.match(path):
                raise ValueError(f"{path!r} is a disk or the machine's memory, which gives control of the host")
        return paths

    @field_validator("mounts")
    @classmethod
    def _check_mounts(cls, mounts: dict[str, str]) -> dict[str, str]:
        for source, target in mounts.items():
            if source == "/" or any(paths_overlap(source, closed) for closed in _FORBIDDEN_SOURCES):
                raise ValueError(
                    f"{source!r} contains or is inside a system folder of the host ({', '.join(_FORBIDDEN_SOURCES)})"
                )
            if target == "/" or any(paths_overlap(target, taken) for taken in _RESERVED_TARGETS):
                raise ValueError(
                    f"{target!r} overlaps a path that every container uses ({', '.join(_RESERVED_TARGETS)})"
                )
        if len(set(mounts.values())) < len(mounts):
            raise ValueError("two folders have the same path in the container")
        return mounts

    @field_validator("network")
    @classmethod
    def _check_network(cls, name: str | None) -> str | None:
        if name is not None and not _NETWORK.match(name):
            raise ValueError(f"{name!r} is not a valid network name; write host, none or a name")
        return name

    def describe(self) -> str:
        """Describe the privileges in a phrase; empty if there are none."""
        parts = [
            f"capabilities {', '.join(self.capabilities)}" if self.capabilities else "",
            f"devices {', '.join(self.devices)}" if self.devices else "",
            f"to read {', '.join(f'{source} at {target}' for source, target in self.mounts.items())}"
            * bool(self.mounts),
            f"network {self.network}" if self.network else "",
            f"{self.pids:,} processes" if self.pids else "",
            "root" if self.root else "",
        ]
        return "; ".join(part for part in parts if part)
