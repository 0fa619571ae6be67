"""Passes GPUs to a container: by CDI names if the engine offers them, else through NVIDIA's runtime."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from worker.backends.base import LaunchError

CDI_KIND = "nvidia.com/gpu"
NO_DRIVER_MESSAGE = "could not select device driver"  # error message of an engine that cannot pass GPUs to containers

TOOLKIT = "nvidia-ctk"
SAFE_TOOLKIT = (1, 17, 8)
"""The first version that passes nothing of a container's environment to programs that run as root on the host."""
_TOOLKIT_SECONDS = 5.0
_VERSION = re.compile(r"(\d+)\.(\d+)\.(\d+)")
_HOOK = "nvidia-container-runtime-hook"
# A specification is YAML or JSON that `nvidia-ctk cdi generate` writes; only these two of its keys matter here.
_CDI_KIND_LINE = re.compile(r"""["']?kind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(?:,|$)""", re.MULTILINE)
_CDI_NAME = re.compile(r"""(?:^|[\s{,-])["']?name["']?\s*:\s*["']?([A-Za-z0-9][A-Za-z0-9_.:-]*)""", re.MULTILINE)


def cdi_names(gpus: Sequence[str], info: dict[str, Any]) -> tuple[str, ...]:
    """Return the GPUs' CDI names; empty if the engine does not offer all of them by name."""
    names = tuple(f"{CDI_KIND}={gpu}" for gpu in gpus)
    return names if set(names) <= set(_cdi_devices(info)) else ()


def check_supported(gpus: Sequence[str], info: dict[str, Any]) -> None:
    """Check that the engine can pass these GPUs to a container, before anything is created.

    Raises `LaunchError`: the engine cannot, or must not, pass them on.
    """
    version = toolkit_version()
    if version is not None and version < SAFE_TOOLKIT:
        raise LaunchError(
            "no_gpu_runtime",
            f"NVIDIA Container Toolkit {'.'.join(map(str, version))} lets a container become root of this machine "
            f"(CVE-2025-23266), so no job gets a GPU here. Its administrator installs "
            f"{'.'.join(map(str, SAFE_TOOLKIT))} or later",
        )
    if not is_supported(gpus, info):
        runtimes = ", ".join(sorted(info.get("Runtimes") or {})) or "none"
        raise LaunchError("no_gpu_runtime", f"its runtimes are {runtimes}")


def toolkit_version() -> tuple[int, ...] | None:
    """Return the version of NVIDIA's toolkit; None if its program is not here, or does not report one.

    A remote engine uses another toolkit, whose version cannot be queried.
    """
    program = shutil.which(TOOLKIT)
    if program is None:
        return None
    try:
        output = subprocess.run(  # noqa: S603 - the administrator's own program
            [program, "--version"], capture_output=True, text=True, timeout=_TOOLKIT_SECONDS, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(output)
    return tuple(map(int, match.groups())) if match else None


def is_supported(gpus: Sequence[str], info: dict[str, Any]) -> bool:
    """Return whether the engine can pass these GPUs to containers, as far as it reports that."""
    # An engine that finds the toolkit's hook at its start needs no such runtime, and does not list one.
    return "nvidia" in (info.get("Runtimes") or {}) or bool(cdi_names(gpus, info)) or shutil.which(_HOOK) is not None


def _cdi_devices(info: dict[str, Any]) -> Iterator[str]:
    if "DiscoveredDevices" in info:  # Docker 28.3 and later
        yield from (device["ID"] for device in info["DiscoveredDevices"] or () if device.get("Source") == "cdi")
        return
    for folder in info.get("CDISpecDirs") or ():  # 25 and later, where CDI is on
        for file in sorted(Path(folder).glob("*")):
            if file.suffix in {".yaml", ".json"}:
                yield from _devices_in_cdi_file(file)


def _devices_in_cdi_file(file: Path) -> Iterator[str]:
    try:
        text = file.read_text(errors="replace")
    except OSError:  # the engine itself reports files that it cannot read
        return
    if _CDI_KIND_LINE.search(text):
        yield from (f"{CDI_KIND}={name}" for name in _CDI_NAME.findall(text))
